/** Every prompt of the run in a line, as the report was handed it. */

import { data, find, real, type Prompt } from "./data";
import { count, number, oneLine, percent, plural, score } from "./format";
import { address } from "./state";

export function Prompts() {
  const listed = data.prompts;
  if (!listed?.rows.length) return null;
  const { rows, total, headline } = listed;
  return (
    <details class="fold whole">
      <summary>
        {plural(total, "prompt")}: {headline}
      </summary>
      <div class="scroll">
        <table class="plain" aria-label="Prompts">
          <thead>
            <tr>
              {["band", "passed", "trend", "reward", "attempts", "solved at", "tool calls failed", "asked"].map(
                (name) => (
                  <th key={name} scope="col">
                    {name}
                  </th>
                ),
              )}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <PromptRow key={row.prompt_id} of={row} />
            ))}
          </tbody>
        </table>
      </div>
      {total > rows.length && (
        <p class="dim small">The {count(rows.length)} prompts that were solved least; `rollouts prompts` lists all.</p>
      )}
    </details>
  );
}

function PromptRow({ of: row }: { of: Prompt }) {
  const asked = oneLine(row.question, 100);
  return (
    <tr>
      <td>{row.band ?? ""}</td>
      <td class="num">{real(row.pass_rate) === null ? "" : percent(Number(row.pass_rate), 1)}</td>
      <td>{row.trend}</td>
      <td class="num">{score(row.reward_mean)}</td>
      <td class="num">{count(row.attempts)}</td>
      <td class="num">{row.first_solved === null ? "" : number(row.first_solved)}</td>
      <td class="num">{row.tool_calls ? percent(row.failed_calls, row.tool_calls) : ""}</td>
      <td>{find(row.last_rollout) ? <a href={address(row.last_rollout)}>{asked}</a> : asked}</td>
    </tr>
  );
}
