// Node's https and http2. See client.py.
import http2 from "node:http2";
import https from "node:https";

const [mode, port, host, token] = process.argv.slice(2);
const statuses = {}, lost = [];

async function count(what, ask) {
    try {
        const status = await ask();
        statuses[status] = (statuses[status] ?? 0) + 1;
    } catch (error) {
        lost.push(`${what}: ${error.code} ${error.message}`);
    }
}

async function input() {
    let text = "";
    for await (const piece of process.stdin) text += piece;
    return text;
}

const agent = new https.Agent({ keepAlive: true, maxSockets: 1 });

const overHttp1 = (method, path, size, token) => new Promise((resolve, reject) => {
    const headers = { host, authorization: `Bearer ${token}`, "content-type": "application/json", "content-length": size };
    const options = { host: "127.0.0.1", port, servername: host, rejectUnauthorized: false, agent, method, headers };
    const request = https.request({ ...options, path: "/api/v1" + path }, (response) => {
        response.on("end", () => resolve(response.statusCode)).on("error", reject).resume();
    });
    request.on("error", reject).flushHeaders();
    request.end(Buffer.alloc(size, "x"));
});

let session;
function connected() {
    if (!session || session.closed || session.destroyed) {
        session = http2.connect(`https://${host}:${port}`, {
            rejectUnauthorized: false,
            lookup: (_, options, done) => done(null, options.all ? [{ address: "127.0.0.1", family: 4 }] : "127.0.0.1", 4),
        });
        // What it ends, it reports at each request.
        session.on("error", () => {});
    }
    return session;
}

// If Node opens a stream after nghttp2 has received GOAWAY but before its event, nghttp2 itself refuses the stream. The request
// was not sent and can be retried (RFC 9113, 8.7).
async function overHttp2(turn) {
    for (;;) {
        const used = connected();
        try {
            return await once(used, turn);
        } catch (error) {
            if (!used.closed || !error.message.includes("NGHTTP2_REFUSED_STREAM")) throw error;
        }
    }
}

const once = (session, turn) => new Promise((resolve, reject) => {
    const [method, path] = turn % 3 ? ["GET", "/api/v1/me"] : ["POST", "/api/v1/submission"];
    const stream = session.request({ ":method": method, ":path": path, authorization: `Bearer ${token}` });
    let status;
    stream.on("response", (headers) => { status = headers[":status"]; }).on("error", reject);
    stream.on("end", () => resolve(status)).on("close", () => reject(new Error("closed without an end"))).resume();
    stream.end(method === "POST" ? "{}" + " ".repeat(turn % 7 * 20_000) : undefined);
});

const each = (workers, work) => Promise.all(Array.from({ length: workers }, work));

if (mode === "early") {
    for (const [method, path, size, token, times] of JSON.parse(await input())) {
        for (let i = 0; i < times; i++) {
            await count(`https ${method} ${path} ${size}`, () => overHttp1(method, path, size, token));
        }
    }
} else if (mode === "end") {
    for (let turn = 0; turn < 100; turn++) await count("http2", () => overHttp2(turn));
    await each(4, async () => {
        for (let turn = 0; turn < 50; turn++) await count("http2, four at once", () => overHttp2(turn));
    });
} else {
    let ended = false;
    input().then(() => { ended = true; });
    await each(3, async () => {
        for (let turn = 0; !ended; turn++) await count("http2", () => overHttp2(turn));
    });
}
console.log(JSON.stringify({ statuses, lost }));
session?.close();
agent.destroy();
