// Loads a plugin as opencode does, calls one of its tools for each line of stdin, and prints each answer as a line.
import { createInterface } from "node:readline"
import { pathToFileURL } from "node:url"

const module = await import(pathToFileURL(process.argv[2]).href)
const exported = Object.values(module)
if (exported.length !== 1) throw new Error("a plugin file is expected to export one plugin")
const hooks = await exported[0]({ directory: process.cwd(), worktree: process.cwd() })

for await (const line of createInterface({ input: process.stdin })) {
  const { tool, args, session, hook, input, abort_ms: abortMs } = JSON.parse(line)
  let answer
  if (tool) {
    const ctx = { sessionID: session, messageID: "msg_a", callID: "call_1", agent: "build" }
    ctx.abort = abortMs === undefined ? new AbortController().signal : AbortSignal.timeout(abortMs)
    answer = await hooks.tool[tool].execute(args, ctx)
  } else if (hook) {
    answer = { env: {} }
    await hooks[hook](input, answer)
  } else {
    answer = {}
    for (const [name, one] of Object.entries(hooks.tool)) {
      const fields = Object.entries(one.args)
      const properties = Object.fromEntries(fields.map(([key, field]) => [key, field._zod.toJSONSchema()]))
      const required = fields.filter(([, field]) => field._zod.optin === undefined).map(([key]) => key)
      answer[name] = { description: one.description, properties, required }
    }
  }
  console.log(JSON.stringify(answer))
}
