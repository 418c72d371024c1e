//! `POST /.search` at the root: users and groups as one list (RFC 7644, section 3.4.3).
//!
//! Of an attribute that only one type has, the other one has no value: a comparison does not hold, and the order has it last
//! (section 3.4.2.1).

use super::error::{Fault, ScimError};
use super::filter::Test;
use super::list::ListRequest;
use super::{Call, groups, users};
use crate::gate::Admitted;
use crate::reply::Reply;
use crate::store::{DirectoryResource, Filter, GroupTest, UserTest};

pub(super) async fn search(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    let request = ListRequest::of_body(&call.body)?;
    let of_users = request.listing(&|test| Ok(resolve(test)?.map(|(users, _)| users)), users::order)?;
    let of_groups = request.listing(&|test| Ok(resolve(test)?.map(|(_, groups)| groups)), groups::order)?;
    let store = call.store(admitted).await?;
    let (found, total) = store.search_directory(&of_users, &of_groups).await?;
    let projection = &request.projection;
    let listed = found.iter().filter_map(|resource| match resource {
        DirectoryResource::Group(group) => Some(group),
        DirectoryResource::User(_) => None,
    });
    let members = groups::members_of(&store, listed, projection).await?;
    let json_of = |resource: &DirectoryResource| match resource {
        DirectoryResource::User(user) => users::json_of(call, user, projection),
        DirectoryResource::Group(group) => {
            groups::json_of(call, group, members.get(&group.id).map(Vec::as_slice), projection)
        }
    };
    let resources: Vec<_> = found.iter().map(json_of).collect();
    Ok(request.reply(&resources, total))
}

/// What a comparison means for users and for groups.
type OfBoth = (Filter<UserTest>, Filter<GroupTest>);

/// `None` if neither have the attribute.
fn resolve(test: Test) -> Result<Option<OfBoth>, Fault> {
    Ok(match (users::resolve(test.clone())?, groups::resolve(test)?) {
        (None, None) => None,
        (users, groups) => Some((users.unwrap_or_else(Filter::none), groups.unwrap_or_else(Filter::none))),
    })
}
