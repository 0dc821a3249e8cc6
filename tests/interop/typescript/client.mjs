// One visit to a gateway with the TypeScript SDK; prints what it saw as one JSON object.
//
//   GATEWAY_KEY=cmg_… node client.mjs SDK URL QUERY < script
//
// SDK: "sdk" (1.x, which knows the legacy era only), or "client-legacy", "client-auto", "client-modern" (2.x).
import { readFileSync } from "node:fs";

const [sdk, url, query] = process.argv.slice(2);
const code = readFileSync(0, "utf8");
const MODES = { "client-legacy": "legacy", "client-auto": "auto", "client-modern": { pin: "2026-07-28" } };

async function library() {
  if (sdk !== "sdk") return await import("@modelcontextprotocol/client");
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
  return { Client, StreamableHTTPClientTransport };
}

const { Client, StreamableHTTPClientTransport } = await library();
const options = sdk in MODES ? { versionNegotiation: { mode: MODES[sdk] } } : {};
const client = new Client({ name: "interop", version: "1.0.0" }, options);
const headers = { Authorization: `Bearer ${process.env.GATEWAY_KEY}` };
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });

await client.connect(transport);
const { tools } = await client.listTools();
const docs = await client.callTool({ name: "docs_search", arguments: { query } });
const run = await client.callTool({ name: "execute_code", arguments: { code } });
const version = transport.protocolVersion ?? client.getNegotiatedProtocolVersion();
await client.close();

console.log(JSON.stringify({ version, tools: tools.map((tool) => tool.name), docs, run }));
