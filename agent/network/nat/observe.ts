/** What is: the kernel's devices, rules and switches, read with two commands. */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import * as z from 'zod';
import { ProgramError } from '../../../base/exec.ts';
import { run } from '../commands.ts';

export interface Link {
  /** `bridge`, `tun`, `veth`, …; empty for a physical device. */
  kind: string;
  up: boolean;
  master: string | undefined;
  isolated: boolean;
  /** `a.b.c.d/len`, IPv4 only. */
  addresses: string[];
  /** The host has an IPv6 address there; the kernel gives every device one, also a bridge's ports. */
  ipv6: boolean;
  /** A process holds the other end (of a tap), or the other end is up (of a veth). */
  carrier: boolean;
}

export type Links = ReadonlyMap<string, Link>;

const linkSchema = z.object({
  ifname: z.string().optional(),
  flags: z.array(z.string()).default([]),
  master: z.string().optional(),
  linkinfo: z
    .object({
      info_kind: z.string().default(''),
      info_slave_data: z.object({ isolated: z.boolean().optional() }).optional(),
    })
    .optional(),
  addr_info: z
    .array(
      z.object({
        family: z.string().optional(),
        local: z.string().optional(),
        prefixlen: z.number().optional(),
      }),
    )
    .default([]),
});

function toLink(raw: z.infer<typeof linkSchema>): Link {
  return {
    kind: raw.linkinfo?.info_kind ?? '',
    up: raw.flags.includes('UP'),
    master: raw.master,
    isolated: raw.linkinfo?.info_slave_data?.isolated === true,
    addresses: raw.addr_info
      .filter((one) => one.family === 'inet')
      .map((one) => `${one.local}/${one.prefixlen}`),
    ipv6: raw.addr_info.some((one) => one.family === 'inet6'),
    carrier: raw.flags.includes('LOWER_UP'),
  };
}

/** Every network device of this namespace by name. */
export async function readLinks(): Promise<Links> {
  const raw = z
    .array(linkSchema)
    .parse(JSON.parse(await run('ip', ['-json', '-details', 'address', 'show'])));
  return new Map(
    raw.flatMap((one) => (one.ifname === undefined ? [] : [[one.ifname, toLink(one)] as const])),
  );
}

const FORWARDING = '/proc/sys/net/ipv4/ip_forward';

export async function readForwarding(): Promise<boolean> {
  return (await readFile(FORWARDING, 'utf8')).trim() === '1';
}

export { FORWARDING as FORWARDING_SWITCH };

/** One entry of `nft --json list ruleset`: `{table: …}`, `{chain: …}`, `{rule: …}`, `{set: …}`, `{map: …}`. */
export type RulesetEntry = Record<
  string,
  { family?: string; table?: string; name?: string; [key: string]: unknown }
>;

const rulesetSchema = z.object({
  nftables: z.array(z.record(z.string(), z.record(z.string(), z.unknown()))),
});

export async function readRuleset(): Promise<RulesetEntry[]> {
  const text = await run('nft', ['--json', 'list', 'ruleset']);
  return rulesetSchema.parse(JSON.parse(text)).nftables;
}

/** One table, named as nft does: `inet berth`; empty when it is not there. */
export async function readTable(name: string): Promise<RulesetEntry[]> {
  try {
    const text = await run('nft', ['--json', 'list', 'table', ...name.split(' ')]);
    return rulesetSchema.parse(JSON.parse(text)).nftables;
  } catch (error) {
    if (error instanceof ProgramError && error.words.includes('No such file or directory')) {
      return [];
    }
    throw error;
  }
}

/** The table an entry stands in, `inet berth`; undefined for the list's own header. */
export function tableOf(entry: RulesetEntry): string | undefined {
  const [kind, body] = Object.entries(entry)[0] ?? [];
  const family = body?.['family'];
  const table = body?.[kind === 'table' ? 'name' : 'table'];
  return typeof family === 'string' && typeof table === 'string' ? `${family} ${table}` : undefined;
}

/** Packets that counters of a table have counted, by the counter's name. */
export function countedPackets(ruleset: readonly RulesetEntry[], table: string): Map<string, number> {
  const counters = ruleset.flatMap((entry) =>
    'counter' in entry && tableOf(entry) === table ? [entry] : [],
  );
  return new Map(counters.map(({ counter }) => [String(counter?.name), Number(counter?.['packets'])]));
}

/** What differs although nobody has changed a rule: handles are counted up, counters count. */
const VOLATILE = new Set(['handle', 'index', 'packets', 'bytes']);

/** Sets have no order of their own. */
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

/** One value for the content of the given tables: equal exactly when their chains, rules, sets and maps are. */
export function fingerprint(ruleset: readonly RulesetEntry[], tables: readonly string[]): string {
  const ours = ruleset.filter((entry) => tables.includes(tableOf(entry) ?? ''));
  return createHash('sha256')
    .update(JSON.stringify(canonical(ours)))
    .digest('hex');
}
