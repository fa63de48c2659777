/** Reads the nftables rules of the kernel, for the `nat` network and for the guard of the `user` network. */
import { createHash } from 'node:crypto';
import * as z from 'zod';
import { undefinedIf } from '../../base/errors.ts';
import { ProgramError } from '../../base/exec.ts';
import { run } from './commands.ts';

/** Entry of `nft --json list ruleset`: `{table: …}`, `{chain: …}`, `{rule: …}`, `{set: …}`, `{map: …}`. */
export type RulesetEntry = Record<
  string,
  { family?: string; table?: string; name?: string; [key: string]: unknown }
>;

const rulesetSchema = z.object({
  nftables: z.array(z.record(z.string(), z.record(z.string(), z.unknown()))),
});

/**
 * Name of the set in which the kernel counts the connections of each guest or program. The kernel adds an element for an address at its
 * first connection. A change of the rules keeps the set. Otherwise a guest could open further connections after each change.
 */
export const CONNECTIONS_SET = 'connections';

export async function readRuleset(): Promise<RulesetEntry[]> {
  return parseRuleset(await run('nft', ['--json', 'list', 'ruleset']));
}

/** Parses the output of `nft --json list ruleset`. @throws Error when the text is not such output. */
export function parseRuleset(text: string): RulesetEntry[] {
  return rulesetSchema.parse(JSON.parse(text)).nftables;
}

/** Reads one table by its name in nft, for example `inet berth`. Returns an empty list if the table does not exist. */
export async function readTable(name: string): Promise<RulesetEntry[]> {
  const isAbsent = (error: unknown): boolean =>
    error instanceof ProgramError && error.message.includes('No such file or directory');
  const text = await undefinedIf(isAbsent, run('nft', ['--json', 'list', 'table', ...name.split(' ')]));
  return text === undefined ? [] : parseRuleset(text);
}

/** Returns the name of the entry's table, for example `inet berth`; undefined for the header of the list. */
export function tableOf(entry: RulesetEntry): string | undefined {
  const [kind, body] = Object.entries(entry)[0] ?? [];
  const family = body?.['family'];
  const table = body?.[kind === 'table' ? 'name' : 'table'];
  return typeof family === 'string' && typeof table === 'string' ? `${family} ${table}` : undefined;
}

/** Returns the names of all entries of one kind in a table, for example of all sets. */
export function namesIn(ruleset: readonly RulesetEntry[], table: string, kind: string): string[] {
  return ruleset.flatMap((entry) => {
    const name = entry[kind]?.name;
    return name !== undefined && tableOf(entry) === table ? [name] : [];
  });
}

/** Returns the addresses in {@link CONNECTIONS_SET} of a table: those of guests and programs whose connections the kernel counts. */
export function countedAddresses(ruleset: readonly RulesetEntry[], table: string): string[] {
  return ruleset.flatMap((entry) => {
    const elements =
      entry['set']?.name === CONNECTIONS_SET && tableOf(entry) === table && entry['set']['elem'];
    return z
      .array(z.object({ elem: z.object({ val: z.string() }) }).transform(({ elem }) => elem.val))
      .parse(elements || []);
  });
}

/** Returns the number of packets of each counter in a table. The key is the counter's name. */
export function countedPackets(ruleset: readonly RulesetEntry[], table: string): Map<string, number> {
  const counters = ruleset.flatMap((entry) =>
    'counter' in entry && tableOf(entry) === table ? [entry] : [],
  );
  return new Map(counters.map(({ counter }) => [String(counter?.name), Number(counter?.['packets'])]));
}

/**
 * Names of JSON properties whose values change even if no rule changes. If the same rules are loaded again, they get new handles. Counters
 * increase with each packet.
 */
const VOLATILE = new Set(['handle', 'index', 'packets', 'bytes']);

/** Returns a comparable form of the value: without volatile properties, and with sorted sets, because sets have no order. */
function canonical(value: unknown): unknown {
  if (Array.isArray(value)) {
    return value.map(canonical);
  }
  if (typeof value !== 'object' || value === null) {
    return value;
  }
  const entries = Object.entries(value).filter(([key]) => !VOLATILE.has(key));
  return Object.fromEntries(
    entries.map(([key, inner]) => {
      const seen = canonical(inner);
      return [key, (key === 'elem' || key === 'set') && Array.isArray(seen) ? byText(seen) : seen];
    }),
  );
}

function byText(values: unknown[]): unknown[] {
  return values.toSorted((a, b) => JSON.stringify(a).localeCompare(JSON.stringify(b)));
}

/** Returns the entry without the elements of {@link CONNECTIONS_SET}. The kernel adds and removes these elements. */
function withoutCounted(entry: RulesetEntry): RulesetEntry {
  const { elem: _counted, ...set } = entry['set'] ?? {};
  return set.name === CONNECTIONS_SET ? { set } : entry;
}

/**
 * Returns a hash of the given tables. Two hashes are equal if and only if all chains, rules, sets and maps are equal. Counted packets and
 * counted connections do not matter.
 */
export function fingerprint(ruleset: readonly RulesetEntry[], tables: readonly string[]): string {
  const ours = ruleset.filter((entry) => tables.includes(tableOf(entry) ?? ''));
  return createHash('sha256')
    .update(JSON.stringify(canonical(ours.map(withoutCounted))))
    .digest('hex');
}
