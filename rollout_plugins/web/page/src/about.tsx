/** What the run was: model, rewards, tools, settings, versions, attempts. */

import { data, text } from "./data";
import { duration, moment, number } from "./format";
import { Facts, Fold, Text, written } from "./pieces";

export function About() {
  const { run } = data;
  const many = run.attempts.length > 1;
  return (
    <details class="fold whole">
      <summary>
        What the run was:{" "}
        {["rewards", run.tools.length ? "tools" : "", "settings", "versions", many ? "attempts" : ""]
          .filter(Boolean)
          .join(", ")}
      </summary>
      <div class="whole-facts">
        <section>
          <h2 class="minor">Run</h2>
          <Facts
            of={{
              model: run.model || null,
              trainer: run.trainer || null,
              run: run.id,
              processes: run.world_size,
              ...(run.num_generations ? { "rollouts per prompt": run.num_generations } : {}),
            }}
          />
        </section>
        {run.rewards.length > 0 && (
          <section>
            <h2 class="minor">Rewards</h2>
            <Facts
              of={Object.fromEntries(
                run.rewards.map(([name, weight]) => [name, weight === null ? "" : `weight ${number(weight)}`]),
              )}
            />
          </section>
        )}
        {run.tools.length > 0 && (
          <section>
            <h2 class="minor">Tools</h2>
            {run.tools.map((tool, at) => (
              <Fold
                key={at}
                title={
                  <>
                    <span class="tool">{tool.name}</span> <span class="dim">{written(tool.description)}</span>
                  </>
                }
              >
                <div class="code">
                  <Text of={indented(String(written(tool.schema)))} />
                </div>
              </Fold>
            ))}
          </section>
        )}
        {Object.keys(run.annotations).length > 0 && (
          <section>
            <h2 class="minor">Annotated by</h2>
            <Facts
              of={Object.fromEntries(
                Object.entries(run.annotations).map(([name, columns]) => [name, columns.join(", ")]),
              )}
            />
          </section>
        )}
        {(many || run.attempts.some((attempt) => attempt.resumed_from !== undefined)) && <Attempts />}
        {Object.keys(run.settings).length > 0 && (
          <section>
            <h2 class="minor">Settings</h2>
            <Facts of={run.settings} />
          </section>
        )}
        {Object.keys(run.versions).length > 0 && (
          <section>
            <h2 class="minor">Versions</h2>
            <Facts of={run.versions} />
          </section>
        )}
        {run.chat_template !== null && typeof run.chat_template === "object" && (
          <section>
            <h2 class="minor">Chat template</h2>
            <div class="code">
              <Text of={text(run.chat_template.text)} most={1200} lines={16} />
            </div>
          </section>
        )}
      </div>
    </details>
  );
}

function Attempts() {
  const ranks = data.run.world_size > 1;
  return (
    <section class="across">
      <h2 class="minor">Attempts</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="Attempts">
        <table class="plain">
          <thead>
            <tr>
              {["attempt", ranks ? "rank" : "", "started", "lasted", "from step", "rollouts"]
                .filter(Boolean)
                .map((name) => (
                  <th scope="col" key={name}>
                    {name}
                  </th>
                ))}
            </tr>
          </thead>
          <tbody>
            {data.run.attempts.map((one, at) => (
              <tr key={at}>
                <td class="num">{number(one.attempt)}</td>
                {ranks && <td class="num">{number(one.rank)}</td>}
                <td>{moment(one.started) || "\u2013"}</td>
                <td>{one.started && one.ended ? duration(one.ended - one.started) : "did not end"}</td>
                <td class="num">{one.resumed_from === undefined ? "start" : number(one.resumed_from)}</td>
                <td class="num">{number(one.rollouts)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function indented(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}
