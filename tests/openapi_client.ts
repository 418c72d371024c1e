// Uses the types that openapi-typescript makes of the description, against a gateway with the demo's data.
//
// Arguments: the base URL and a token. It has to compile as it is: what a caller may leave out is left out here.

import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

const [baseUrl, token] = process.argv.slice(2) as [string, string];
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });

function check(condition: unknown, what: string): asserts condition {
  if (!condition) throw new Error(what);
}

const me = await client.GET("/me");
check(me.data?.account.id === "acme", "me");
const form = await client.GET("/form/{id}", { params: { path: { id: "for_1" } } });
const kind = form.data?.data.elements.find((element) => element.name === "Kind of leave")?.id;
check(kind, "the form has the element");

const none: components["schemas"]["Filters"] = {};
const every: components["schemas"]["Filters"] = {
  forms: ["for_1", "2", 4],
  statuses: ["pending", "approved", "denied", "back", "info", "escalate"],
  search: "ay",
  submitters: [1, "2"],
  pending: [1],
  participants: [1],
  terms: { [kind]: ["holiday", "training"] },
  start: "2020-01-01",
  end: "2040-01-01T00:00:00Z",
  labels: [1],
  sharedLabels: [1],
  flows: [1],
  sortBy: "created_at",
  sortDirection: "asc",
};
check((await client.POST("/submission", { body: every })).data?.meta, "every filter");
const some = await client.POST("/submission", { body: { terms: every.terms, labels: null } });
const first = some.data?.data[0];
check(first && first.allElements.length > 0, "a submission");
const second = await client.POST("/submission", { params: { query: { page: 2 } }, body: none });
check(second.data?.meta.current_page === 2 && second.data.links.prev !== null, "the second page");
const refused = await client.POST("/submission", { body: { search: "x" } });
check(refused.error && "errors" in refused.error && refused.error.errors["search"], "the faults");

const group = await client.PUT("/group", {
  params: { query: { report: "members" } },
  body: { name: "TypeScript", external_id: "typescript", members: [{ email: "ts@acme.example" }] },
});
check(group.data?.result === "created" && group.data.members.attached === 1, "a group");
const gone = await client.DELETE("/group/{id}", { params: { path: { id: group.data.data.id } } });
check(gone.data?.deleted, "the group is deleted");

const changes = await client.GET("/submission/changes", { params: { query: { limit: 5 } } });
for (const change of changes.data?.data ?? []) {
  // The type says whether there is a submission.
  check(change.type === "deleted" || change.submission.id === change.id, "a change");
}
const event: components["schemas"]["Replay"] = { event: "evt_1" };
check("event" in event, "a replay has one of four forms");

const made = await client.POST("/subscribe", { body: { target_url: "https://hooks.example.com/ts" } });
check(made.data, "a subscription");
const ended = await client.DELETE("/subscribe/{id}", { params: { path: { id: made.data.data.id } } });
check(ended.data?.deleted === 1, "the subscription is deleted");
