//! Errors about databases of other versions of this program.

use sqlx::migrate::{MigrateError, Migrator};

/// Why a database cannot be used with the tables of `migrator`.
pub fn why_not(error: &MigrateError, migrator: &Migrator) -> String {
    let known = migrator.iter().map(|migration| migration.version).max().unwrap_or_default();
    match error {
        MigrateError::VersionMissing(got) => format!(
            "tables of format {got} or later, this program knows up to {known}: a newer version of it wrote this, start \
             that one or a later one"
        ),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::borrow::Cow;

    use sqlx::migrate::{Migration, MigrationType};
    use sqlx::sqlite::SqlitePoolOptions;

    use super::*;

    fn migrator(n: i64) -> Migrator {
        let migration = |number| {
            let sql = Cow::Owned(format!("CREATE TABLE t{number} (a BIGINT)"));
            Migration::new(number, Cow::Borrowed("a table"), MigrationType::Simple, sql, false)
        };
        Migrator { migrations: Cow::Owned((1..=n).map(migration).collect()), ..Migrator::DEFAULT }
    }

    #[tokio::test]
    async fn a_database_of_a_newer_program_is_refused_by_the_numbers_of_both() {
        let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
        migrator(4).run(&pool).await.unwrap();
        let error = migrator(2).run(&pool).await.unwrap_err();
        let said = why_not(&error, &migrator(2));
        assert!(
            said.starts_with("tables of format 3 or later, this program knows up to 2: a newer"),
            "{said}"
        );
    }
}
