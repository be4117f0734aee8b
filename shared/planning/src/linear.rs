//! Linear programs in sparse form, solved by clarabel's interior point method.
//!
//! The same numbers give the same solution, bit for bit, on every peer: one thread, no limit of time, fixed
//! tolerances, rows and columns in the order in which they were added, and no operation but those that
//! IEEE 754 defines exactly. It knows no peers.

use clarabel::algebra::CscMatrix;
use clarabel::solver::{
    DefaultSettings, DefaultSolver, IPSolver, NonnegativeConeT, SolverStatus, SupportedConeT, ZeroConeT,
};

use crate::PlanError;

/// More than any known instance needs; exceeding it is an error, never a worse plan.
const ITERATIONS_MAX: u32 = 200;

/// A position of [`LinearProgram::variable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Variable(usize);

/// `max sum(objective x)` subject to rows `sum(a x) = b`, rows `sum(a x) <= b` and `x >= 0`.
#[derive(Debug, Default)]
pub(crate) struct LinearProgram {
    objective: Vec<f64>,
    equalities: SparseRows,
    inequalities: SparseRows,
}

#[derive(Debug, Default)]
struct SparseRows {
    /// Column, row, coefficient.
    entries: Vec<(usize, usize, f64)>,
    right: Vec<f64>,
}

/// The optimum of a [`LinearProgram`].
#[derive(Debug, Clone)]
pub(crate) struct Optimum {
    values: Vec<f64>,
    /// Iterations of the interior point method.
    pub(crate) iterations: u32,
}

impl Optimum {
    /// The variable's value, at least 0.
    pub(crate) fn value(&self, variable: Variable) -> f64 {
        self.values[variable.0].max(0.0)
    }
}

impl SparseRows {
    fn add(&mut self, terms: impl IntoIterator<Item = (Variable, f64)>, right: f64) {
        let row = self.right.len();
        self.entries.extend(terms.into_iter().map(|(variable, factor)| (variable.0, row, factor)));
        self.right.push(right);
    }
}

impl LinearProgram {
    /// Adds a variable of at least 0 with its coefficient in the objective.
    pub(crate) fn variable(&mut self, objective: f64) -> Variable {
        self.objective.push(objective);
        Variable(self.objective.len() - 1)
    }

    /// Adds the row `sum(terms) = right`, with each variable at most once.
    pub(crate) fn equal(&mut self, terms: impl IntoIterator<Item = (Variable, f64)>, right: f64) {
        self.equalities.add(terms, right);
    }

    /// Adds the row `sum(terms) <= right`, with each variable at most once.
    pub(crate) fn at_most(&mut self, terms: impl IntoIterator<Item = (Variable, f64)>, right: f64) {
        self.inequalities.add(terms, right);
    }

    pub(crate) fn n_variables(&self) -> usize {
        self.objective.len()
    }

    /// Rows, without `x >= 0`.
    pub(crate) fn n_constraints(&self) -> usize {
        self.equalities.right.len() + self.inequalities.right.len()
    }

    /// Solves; `program` names it in the error.
    pub(crate) fn solve(self, program: &'static str) -> Result<Optimum, PlanError> {
        let n = self.objective.len();
        let (n_equal, n_at_most) = (self.equalities.right.len(), self.inequalities.right.len());
        let n_rows = n_equal + n_at_most + n;
        let mut entries = self.equalities.entries;
        entries.extend(
            self.inequalities
                .entries
                .into_iter()
                .map(|(column, row, factor)| (column, row + n_equal, factor)),
        );
        entries.extend((0..n).map(|column| (column, n_equal + n_at_most + column, -1.0)));
        entries.sort_unstable_by_key(|&(column, row, _)| (column, row));
        let constraints = compressed(n_rows, n, &entries);
        let mut right = self.equalities.right;
        right.extend(self.inequalities.right);
        right.resize(n_rows, 0.0);
        let minimized: Vec<f64> = self.objective.iter().map(|factor| -factor).collect();
        let cones: [SupportedConeT<f64>; 2] = [ZeroConeT(n_equal), NonnegativeConeT(n_at_most + n)];
        let cones = if n_equal == 0 { &cones[1..] } else { &cones[..] };
        let mut solver = DefaultSolver::new(
            &CscMatrix::zeros((n, n)),
            &minimized,
            &constraints,
            &right,
            cones,
            settings(),
        );
        solver.solve();
        let solution = solver.solution;
        match solution.status {
            // "Almost": within 5e-5 instead of 1e-8, which is far below what bandwidths are measured to.
            SolverStatus::Solved | SolverStatus::AlmostSolved => {
                Ok(Optimum { values: solution.x, iterations: solution.iterations })
            }
            status => Err(PlanError::NotSolved {
                program,
                status: format!("{status:?}"),
                iterations: solution.iterations,
            }),
        }
    }
}

fn settings() -> DefaultSettings<f64> {
    DefaultSettings {
        max_iter: ITERATIONS_MAX,
        time_limit: f64::INFINITY,
        max_threads: 1,
        presolve_enable: false,
        verbose: false,
        ..DefaultSettings::default()
    }
}

/// Entries sorted by column, then row.
fn compressed(n_rows: usize, n_columns: usize, entries: &[(usize, usize, f64)]) -> CscMatrix<f64> {
    let mut starts = vec![0; n_columns + 1];
    for &(column, ..) in entries {
        starts[column + 1] += 1;
    }
    for column in 0..n_columns {
        starts[column + 1] += starts[column];
    }
    let rows = entries.iter().map(|&(_, row, _)| row).collect();
    let factors = entries.iter().map(|&(.., factor)| factor).collect();
    CscMatrix::new(n_rows, n_columns, starts, rows, factors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corner_of_a_polygon_is_found() {
        // max 3x + 2y with x + y <= 4, x + 3y <= 6, x <= 3: the corner (3, 1).
        let mut program = LinearProgram::default();
        let (x, y) = (program.variable(3.0), program.variable(2.0));
        program.at_most([(x, 1.0), (y, 1.0)], 4.0);
        program.at_most([(x, 1.0), (y, 3.0)], 6.0);
        program.at_most([(x, 1.0)], 3.0);
        let optimum = program.solve("polygon").unwrap();
        assert!((optimum.value(x) - 3.0).abs() < 1e-6 && (optimum.value(y) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn an_equality_holds() {
        let mut program = LinearProgram::default();
        let (x, y) = (program.variable(1.0), program.variable(0.0));
        program.equal([(x, 1.0), (y, 2.0)], 5.0);
        program.at_most([(x, 1.0), (y, -1.0)], 0.0);
        let optimum = program.solve("line").unwrap();
        assert!((optimum.value(x) - 5.0 / 3.0).abs() < 1e-6 && (optimum.value(y) - 5.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn an_infeasible_program_is_an_error_with_the_solvers_status() {
        let mut program = LinearProgram::default();
        let x = program.variable(1.0);
        program.at_most([(x, 1.0)], -1.0);
        let error = program.solve("nothing").unwrap_err();
        assert!(error.to_string().contains("PrimalInfeasible"), "{error}");
    }
}
