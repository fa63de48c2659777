/**
 * Users of the power API that have a password: lines `NAME:BCRYPT` of a Secret, as the program htpasswd writes them. The HTTP API reads the
 * lines, and the `berth` command changes them.
 */

/** Name of the Secret in the system namespace. */
export const SERVER_USERS_SECRET = 'berth-server-users';
export const SERVER_USERS_KEY = 'htpasswd';

/** Largest number of users. Programs that need more can use tokens of the cluster. */
export const SERVER_USERS_LIMIT = 1_000;
/** Longest name of a user in characters. */
const NAME_LENGTH = 128;
/** Longest password in bytes. bcrypt ignores all further bytes, so a longer password is never accepted. */
export const PASSWORD_BYTES = 72;
/**
 * Greatest cost of a hash. A check with this cost takes one processor about a second, and twice that for each step more. Anybody on the
 * network can ask for checks.
 */
const COST_LIMIT = 14;

const NAME = /^[^\p{Cc}:#][^\p{Cc}:]*$/u;
const HASH = /^\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}$/;

/** Line that is not used. */
export interface WrongLine {
  /** Number of the line, from 1. */
  readonly line: number;
  /** Reason, without the hash. */
  readonly why: string;
}

export interface ServerUsers {
  /** Hashes of the passwords by the names of the users. */
  readonly hashes: ReadonlyMap<string, string>;
  readonly wrong: readonly WrongLine[];
}

/** Reports whether a user can have this name. */
export function isServerUserName(name: string): boolean {
  return name.length <= NAME_LENGTH && NAME.test(name) && name.trim() === name;
}

/** Reports whether bcrypt uses the whole password. */
export function isWholePassword(password: string): boolean {
  return Buffer.byteLength(password) <= PASSWORD_BYTES && !password.includes('\0');
}

/** Reads the lines of the Secret. Empty lines and lines that begin with `#` are comments. A line that is not valid is left out. */
export function parseServerUsers(text: string): ServerUsers {
  const hashes = new Map<string, string>();
  const wrong: WrongLine[] = [];
  for (const [index, line] of text.split(/\r?\n/).entries()) {
    if (line.trim() === '' || line.startsWith('#')) {
      continue;
    }
    const { name, hash } = splitLine(line);
    const why = findMistake(name, hash) ?? (hashes.has(name) ? 'the name is in an earlier line' : undefined);
    if (why !== undefined) {
      wrong.push({ line: index + 1, why });
    } else if (hashes.size >= SERVER_USERS_LIMIT) {
      wrong.push({ line: index + 1, why: `there are more than ${SERVER_USERS_LIMIT} users` });
      break;
    } else {
      hashes.set(name, hash);
    }
  }
  return { hashes, wrong };
}

/** Returns the lines with a new hash for the user. All other lines stay as they are. Without a hash, the user is removed. */
export function withServerUser(text: string, name: string, hash?: string): string {
  const lines = text.split(/\r?\n/).filter((line) => splitLine(line).name !== name || line.startsWith('#'));
  while (lines.at(-1)?.trim() === '') {
    lines.pop();
  }
  const all = hash === undefined ? lines : [...lines, `${name}:${hash}`];
  return all.map((line) => `${line}\n`).join('');
}

function splitLine(line: string): { name: string; hash: string } {
  const colon = line.indexOf(':');
  return colon === -1
    ? { name: line.trim(), hash: '' }
    : { name: line.slice(0, colon), hash: line.slice(colon + 1).trimEnd() };
}

function findMistake(name: string, hash: string): string | undefined {
  if (!isServerUserName(name)) {
    return `the name must have 1 to ${NAME_LENGTH} characters, without a colon or control characters`;
  }
  const cost = HASH.exec(hash)?.[1];
  if (cost === undefined) {
    return 'after the name and a colon comes the hash of bcrypt ($2a$, $2b$ or $2y$)';
  }
  return Number(cost) < 4 || Number(cost) > COST_LIMIT
    ? `the cost of the hash must be from 4 to ${COST_LIMIT}, and is ${cost}`
    : undefined;
}
