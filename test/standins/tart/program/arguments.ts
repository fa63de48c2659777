/** Stand-in for the program `tart`: its command line and its exit codes. */
import { parseArgs } from 'node:util';

/** Exit codes. */
export const CODES = { done: 0, other: 1, wrongState: 2, usage: 64 } as const;

const FLAG = { type: 'boolean' } as const;
const TEXT = { type: 'string' } as const;
/** Options of each command. Any other option ends the call with code 64. */
const OPTIONS = {
  create: { 'from-ipsw': TEXT, linux: FLAG, 'disk-size': TEXT, 'disk-format': TEXT },
  clone: { insecure: FLAG, concurrency: TEXT, 'prune-limit': TEXT },
  list: { format: TEXT, source: TEXT, quiet: FLAG },
  get: { format: TEXT },
  ip: { wait: TEXT, resolver: TEXT },
  set: {
    cpu: TEXT,
    memory: TEXT,
    display: TEXT,
    'display-refit': FLAG,
    'random-mac': FLAG,
    'random-serial': FLAG,
    disk: TEXT,
    'disk-size': TEXT,
  },
  stop: { timeout: { type: 'string', short: 't' } as const },
  suspend: {},
  delete: {},
  run: {
    'no-graphics': FLAG,
    graphics: FLAG,
    serial: FLAG,
    'serial-path': TEXT,
    'no-audio': FLAG,
    'no-clipboard': FLAG,
    recovery: FLAG,
    vnc: FLAG,
    'vnc-experimental': FLAG,
    disk: { type: 'string', multiple: true } as const,
    'root-disk-opts': TEXT,
    rosetta: TEXT,
    dir: { type: 'string', multiple: true } as const,
    nested: FLAG,
    'net-bridged': TEXT,
    'net-softnet': FLAG,
    'net-softnet-allow': TEXT,
    'net-softnet-block': TEXT,
    'net-softnet-expose': TEXT,
    'net-host': FLAG,
    suspendable: FLAG,
    'capture-system-keys': FLAG,
    'no-trackpad': FLAG,
    'no-pointer': FLAG,
    'no-keyboard': FLAG,
  },
} as const;
type Command = keyof typeof OPTIONS;
export type Values = Readonly<Record<string, string | boolean | (string | boolean)[] | undefined>>;

/** Error that ends a call with a code and words. */
export class Refused extends Error {
  readonly code: number;

  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }
}

/** Reads a command line. @throws Refused with the code for a wrong one. */
export function parse(command: string, rest: readonly string[]): { values: Values; names: string[] } {
  const options = OPTIONS[command as Command] as (typeof OPTIONS)[Command] | undefined;
  if (options === undefined) {
    throw new Refused(CODES.usage, `Error: Unexpected argument '${command}'`);
  }
  try {
    const { values, positionals } = parseArgs({ args: [...rest], options, allowPositionals: true });
    return { values: values as Values, names: positionals };
  } catch (error) {
    throw new Refused(CODES.usage, `Error: ${(error as Error).message}`);
  }
}
