// Reads cases from standard input, and prints whether the package from npm accepts each. The folder where it is
// installed is the argument.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { Webhook, WebhookVerificationError } = createRequire(process.argv[2])("standardwebhooks");

function accepts({ secret, headers, body }) {
  try {
    new Webhook(secret).verify(body, headers);
    return true;
  } catch (error) {
    if (error instanceof WebhookVerificationError) return false;
    throw error;
  }
}

console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(accepts)));
