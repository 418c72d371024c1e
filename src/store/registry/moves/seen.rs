//! The open moves, as every node sees them with its look at the registry, and the nodes that have an account's requests wait.

use super::MoveState;
use crate::store::statement::{Sql, sql};
use crate::store::{Registry, StoreError};

/// An open move, as every node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenMove {
    /// Its number.
    pub id: i64,
    /// The tenant.
    pub slug: String,
    /// How far it is.
    pub state: MoveState,
    /// How often nodes were asked to have requests wait.
    pub hold: i64,
    /// The address of the database to which the account moves.
    pub place: String,
}

/// The open moves, as a JSON array of arrays.
pub(in crate::store::registry) fn open_moves() -> Sql {
    sql!(
        "(SELECT {pg: coalesce(json_agg(json_build_array(id, slug, state, hold, place)), '[]')::text
           | lite: json_group_array(json_array(id, slug, state, hold, place))}
         FROM registry_moves WHERE is_open)"
    )
}

/// Reads what [`open_moves`] selects.
pub(in crate::store::registry) fn read_open(text: &str) -> Vec<SeenMove> {
    let rows: Vec<(i64, String, String, i64, String)> = serde_json::from_str(text).unwrap_or_default();
    let read = |(id, slug, state, hold, place): (_, _, String, _, _)| SeenMove {
        id,
        slug,
        state: MoveState::of(&state),
        hold,
        place,
    };
    rows.into_iter().map(read).collect()
}

impl Registry {
    /// A node has the requests of an account wait, and none is under way.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn note_hold(&self, id: i64, node: &str, hold: i64) -> Result<(), StoreError> {
        let sql = sql!(
            "INSERT INTO registry_holds (move_id, node, hold) VALUES ({id}, {node}, {hold})
             ON CONFLICT (move_id, node) DO UPDATE SET hold = excluded.hold",
            id,
            node,
            hold,
        );
        self.database.execute(sql).await?;
        Ok(())
    }

    /// The nodes that have the requests of an account wait.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn holding_nodes(&self, id: i64, hold: i64) -> Result<Vec<String>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("SELECT node FROM registry_holds WHERE move_id = {id} AND hold = {hold}", id, hold);
        Ok(reader.fetch_all(sql).await?.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?)
    }
}
