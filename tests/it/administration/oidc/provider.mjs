// A real OpenID provider, the package oidc-provider from npm, that signs in without questions. Arguments: the folder
// where the package is installed, the port, the certificate and its key, and the addresses to come back to. The claims
// of whoever signs in next are set by a request to `/test/person`. Keys are new with each start.

import { createPrivateKey, generateKeyPairSync } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:https";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

// The test reads one line of the output, and then no more.
console.info = console.error;

const [folder, port, certificate, key, method, ...redirects] = process.argv.slice(2);
const main = join(folder, "node_modules/oidc-provider/lib/index.js");
const { Provider } = await import(pathToFileURL(main));

const issuer = `https://localhost:${port}`;
// As PEM first: Node 20 holds the lock of a key while it exports the key, and deadlocks if the garbage collector then frees
// the job that generated the same key.
const { privateKey: pem } = generateKeyPairSync("rsa", {
  modulusLength: 2048,
  publicKeyEncoding: { type: "spki", format: "pem" },
  privateKeyEncoding: { type: "pkcs8", format: "pem" },
});
const jwk = createPrivateKey(pem).export({ format: "jwk" });
let person = {};

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "formgate",
      client_secret: "a secret: of formgate/100%",
      redirect_uris: redirects,
      token_endpoint_auth_method: method,
    },
  ],
  clientAuthMethods: [method],
  jwks: { keys: [{ ...jwk, use: "sig", alg: "RS256" }] },
  cookies: { keys: ["for tests"] },
  claims: { openid: ["sub", "groups"], email: ["email", "email_verified"], profile: ["name"] },
  conformIdTokenClaims: false,
  pkce: { required: () => true },
  features: { devInteractions: { enabled: false } },
  interactions: { url: (_, interaction) => `/test/interaction/${interaction.uid}` },
  findAccount: (_, sub) => ({ accountId: sub, claims: () => ({ sub, ...person }) }),
  async loadExistingGrant(context) {
    const { session, client } = context.oidc;
    const grant = new provider.Grant({ accountId: session.accountId, clientId: client.clientId });
    grant.addOIDCScope("openid email profile");
    await grant.save();
    return grant;
  },
});
provider.on("server_error", (_, error) => console.error(error));

const answer = provider.callback();
const tls = { cert: readFileSync(certificate), key: readFileSync(key) };
createServer(tls, async (request, response) => {
  const url = new URL(request.url, issuer);
  if (url.pathname === "/test/person") {
    person = JSON.parse(url.searchParams.get("claims"));
    response.end();
  } else if (url.pathname.startsWith("/test/interaction/")) {
    const cancel = { error: "access_denied", error_description: "the person cancelled" };
    const result = person.cancels ? cancel : { login: { accountId: person.sub, remember: false } };
    await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: false });
  } else {
    answer(request, response);
  }
}).listen(Number(port), "127.0.0.1", () => console.log("listening"));
