//! A textbook simplex method on a dense tableau, for small programs whose origin is feasible. It shares no
//! line with the interior point method that it checks.

const ZERO: f64 = 1e-9;

/// `max objective x` with `rows x <= right`, `x >= 0`, `right >= 0`.
#[derive(Debug, Default)]
pub(crate) struct SimplexProgram {
    pub(crate) objective: Vec<f64>,
    rows: Vec<(Vec<(usize, f64)>, f64)>,
}

impl SimplexProgram {
    pub(crate) fn variable(&mut self, objective: f64) -> usize {
        self.objective.push(objective);
        self.objective.len() - 1
    }

    /// A variable that comes up twice counts twice.
    pub(crate) fn at_most(&mut self, terms: &[(usize, f64)], right: f64) {
        assert!(right >= 0.0, "the origin must be feasible");
        self.rows.push((terms.to_vec(), right));
    }

    /// The greatest value of the objective. Bland's rule, so it ends.
    pub(crate) fn maximum(&self) -> f64 {
        let (n, m) = (self.objective.len(), self.rows.len());
        let width = n + m + 1;
        let mut table = vec![vec![0.0; width]; m + 1];
        for (i, (terms, right)) in self.rows.iter().enumerate() {
            for &(variable, factor) in terms {
                table[i][variable] += factor;
            }
            table[i][n + i] = 1.0;
            table[i][width - 1] = *right;
        }
        for (variable, factor) in self.objective.iter().enumerate() {
            table[m][variable] = -factor;
        }
        let mut basis: Vec<usize> = (n..n + m).collect();
        while let Some(column) = (0..n + m).find(|&column| table[m][column] < -ZERO) {
            let ratio = |row: usize| table[row][width - 1] / table[row][column];
            let row = (0..m)
                .filter(|&row| table[row][column] > ZERO)
                .min_by(|&a, &b| ratio(a).total_cmp(&ratio(b)).then(basis[a].cmp(&basis[b])))
                .expect("the program is bounded");
            pivot(&mut table, row, column);
            basis[row] = column;
        }
        table[m][width - 1]
    }
}

fn pivot(table: &mut [Vec<f64>], row: usize, column: usize) {
    let factor = table[row][column];
    table[row].iter_mut().for_each(|value| *value /= factor);
    let pivot_row = table[row].clone();
    for (i, other) in table.iter_mut().enumerate() {
        let factor = other[column];
        if i != row && factor != 0.0 {
            other.iter_mut().zip(&pivot_row).for_each(|(value, pivot)| *value -= factor * pivot);
        }
    }
}
