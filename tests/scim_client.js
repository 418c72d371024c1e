// Reads and writes with scimmy as a second client: every answer has to be one that scimmy takes for the schema of RFC 7643, and
// formgate has to do to a group and to a filter what scimmy does to the same.
//
// scimmy sends nothing by itself: it has schemas, messages, filters and the operations of PATCH. Arguments: the origin, the host of
// the account, the base path and a token.

import https from "node:https";
import SCIMMY from "scimmy";

const [origin, host, base, token] = process.argv.slice(2);
const { Messages, Schemas, Types } = SCIMMY;
let checks = 0;

function check(condition, what) {
  if (!condition) throw new Error(typeof what === "string" ? what : JSON.stringify(what));
  checks += 1;
}

// Not every resolver knows names below localhost, so the host is in a header.
function call(method, path, body) {
  const headers = { Host: host, Authorization: `Bearer ${token}`, "Content-Type": "application/scim+json" };
  return new Promise((resolve, reject) => {
    const request = https.request(`${origin}${base}${path}`, { method, headers }, (response) => {
      let text = "";
      response.setEncoding("utf8").on("data", (part) => (text += part));
      response.on("end", () => resolve({ status: response.statusCode, body: text ? JSON.parse(text) : undefined }));
    });
    request.on("error", reject).end(body && JSON.stringify(body));
  });
}

// A resource as scimmy understands it. It throws if an attribute is missing or has another type.
const kinds = { User: Schemas.User, Group: Schemas.Group };
function parse(resource) {
  const Kind = kinds[resource.meta.resourceType];
  check(Kind, resource);
  const parsed = new Kind(resource, "out");
  check(parsed.id === resource.id && parsed.meta.location === resource.meta.location, resource);
  return parsed;
}

async function read(path) {
  const { status, body } = await call("GET", path);
  check(status === 200, { path, status, body });
  return body;
}

async function list(path) {
  const body = await read(path);
  const message = new Messages.ListResponse(body);
  check(message.totalResults === body.totalResults && message.Resources.length === body.itemsPerPage, body);
  body.Resources.forEach(parse);
  return body.Resources;
}

async function create(path, body) {
  const answer = await call("POST", path, body);
  check(answer.status === 201, answer);
  parse(answer.body);
  return answer.body;
}

const member = (value) => ({ value });
const ids = (group) => new Set((group.members ?? []).map(({ value }) => value));
const equal = (left, right) => left.size === right.size && [...left].every((value) => right.has(value));

// What the service says of itself.
for (const schema of (await read("/Schemas")).Resources) {
  const known = Object.values(kinds).find((Kind) => Kind.id === schema.id).definition;
  for (const attribute of schema.attributes) {
    const { type, config } = known.attribute(attribute.name);
    check(type === attribute.type && config.multiValued === attribute.multiValued, attribute);
    for (const part of attribute.subAttributes ?? []) {
      check(known.attribute(`${attribute.name}.${part.name}`).type === part.type, part);
    }
  }
}

const users = [];
for (const number of [0, 1, 2, 3]) {
  const userName = `scimmy-${number}@example.com`;
  const user = { schemas: [Schemas.User.id], userName, displayName: `Scimmy ${number}`, emails: [{ value: userName, type: "work" }] };
  if (number < 2) Object.assign(user, { name: { givenName: "S", familyName: `Y${number}` }, externalId: `scimmy-${number}` });
  users.push(await create("/Users", { ...new Schemas.User(user, "in"), schemas: user.schemas }));
}
const [a, b, c, d] = users.map(({ id }) => id);
const created = await create("/Groups", { schemas: [Schemas.Group.id], displayName: "Scimmy", members: [a, b].map(member) });
const path = `/Groups/${created.id}`;

// The same operations are applied by scimmy and by formgate.
for (const operations of [
  [{ op: "add", path: "members", value: [member(c)] }],
  [{ op: "Add", path: "members", value: [member(c), member(d)] }],
  [{ op: "remove", path: `members[value eq "${a}"]` }],
  [{ op: "Remove", path: `members[value eq "${b}" or value eq "${c}"]` }],
  [{ op: "add", value: { members: [member(a), member(b)] } }],
  [{ op: "replace", path: "members", value: [member(b), member(c)] }],
  [{ op: "replace", value: { displayName: "Scimmy's" } }],
  [{ op: "replace", path: "displayName", value: "Scimmy" }],
  [{ op: "add", path: "members", value: [member(a)] }, { op: "remove", path: `members[value eq "${c}"]` }],
  [{ op: "remove", path: "members" }],
  [{ op: "add", path: "members", value: [a, b, c, d].map(member) }],
]) {
  const before = new Schemas.Group(await read(path), "out");
  const message = new Messages.PatchOp({ schemas: [Messages.PatchOp.id], Operations: operations });
  const expected = (await message.apply(before)) ?? before;
  const { status, body } = await call("PATCH", path, { schemas: message.schemas, Operations: message.Operations });
  check(status === 204, { operations, status, body });
  const found = parse(await read(path));
  check(equal(ids(found), ids(expected)) && found.displayName === expected.displayName, { operations, found, expected });
}

// The same filters are applied by scimmy and by formgate, to users as formgate shows them.
// Those without a name can't match a filter on a part of it, and scimmy fails on them.
const everybody = await list("/Users?count=1000");
const named = everybody.filter(({ name }) => name);
for (const filter of [
  'userName eq "scimmy-1@example.com"',
  'userName sw "scimmy-"',
  'userName co "my-"',
  'externalId eq "scimmy-0"',
  'name.familyName eq "Y1"',
  "active eq true and userName sw \"scimmy-\"",
  'userName eq "scimmy-0@example.com" or userName eq "scimmy-3@example.com"',
  'userName sw "scimmy-" and not (externalId eq "scimmy-1")',
  'emails[type eq "work" and value eq "scimmy-2@example.com"]',
]) {
  const expected = new Set(new Types.Filter(filter).match(filter.startsWith("name.") ? named : everybody).map(({ id }) => id));
  const found = new Set((await list(`/Users?count=1000&filter=${encodeURIComponent(filter)}`)).map(({ id }) => id));
  check(equal(found, expected) && found.size > 0, { filter, found: [...found], expected: [...expected] });
}

// A search of both types.
const search = new Messages.SearchRequest({ schemas: [Messages.SearchRequest.id], filter: 'displayName sw "Scimmy"', count: 3 });
const answer = await call("POST", "/.search", { ...search });
check(answer.status === 200 && answer.body.totalResults === 5 && answer.body.itemsPerPage === 3, answer);
new Messages.ListResponse(answer.body).Resources.forEach(parse);

// Errors are read as those of SCIM.
for (const [method, where, body, status, scimType] of [
  ["GET", "/Users/usr_999999999", undefined, 404, undefined],
  ["GET", "/Users?filter=x", undefined, 400, "invalidFilter"],
  ["POST", "/Users", { schemas: [Schemas.User.id], userName: "scimmy-0@example.com" }, 409, "uniqueness"],
  ["PATCH", path, { schemas: [Messages.PatchOp.id], Operations: [{ op: "remove" }] }, 400, "noTarget"],
  ["PATCH", path, { schemas: [Messages.PatchOp.id], Operations: [{ op: "remove", path: "displayName" }] }, 400, "mutability"],
  ["POST", "/Bulk", { schemas: [Messages.BulkRequest.id], Operations: [] }, 501, undefined],
]) {
  const refused = await call(method, where, body);
  check(refused.status === status, refused);
  let thrown;
  try {
    new Messages.ErrorResponse(refused.body);
  } catch (error) {
    thrown = error;
  }
  check(thrown instanceof Types.Error && Number(thrown.status) === status && (thrown.scimType ?? undefined) === scimType, refused);
}

check((await call("DELETE", path)).status === 204, path);
for (const id of [a, b, c, d]) check((await call("DELETE", `/Users/${id}`)).status === 204, id);
console.log(`scimmy: ${checks} checks passed`);
