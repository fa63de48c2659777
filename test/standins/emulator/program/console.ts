/** Stand-in for the Android emulator: its console, a line protocol with answers that end with `OK` or `KO: …`. */
import { randomBytes } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { Socket } from 'node:net';
import { createInterface } from 'node:readline';

export interface ConsoleFacts {
  avdName: string;
  /** Text of `-id`; the AVD's name without that option. */
  id: string;
  discoveryFile: string;
  /** Called after `kill` was answered. */
  kill: () => void;
}

type Command = (facts: ConsoleFacts, rest: string) => string;

const BEFORE_AUTH: Record<string, Command> = {
  help: () => 'Android console command help:\n    help|h|?         print a list of commands\nOK',
  ping: () => 'I am alive!\nOK',
  'avd name': ({ avdName }) => `${avdName}\nOK`,
};
const AFTER_AUTH: Record<string, Command> = {
  ...BEFORE_AUTH,
  avd: () => 'KO: missing sub-command',
  'avd id': ({ id }) => `${id}\nOK`,
  'avd discoverypath': ({ discoveryFile }) => `${discoveryFile}\nOK`,
};

function tokenFile(): string {
  return join(process.env['HOME'] ?? homedir(), '.emulator_console_auth_token');
}

/** Returns the token, which is made if there is none. An empty token means that nobody has to give it. */
export function readToken(): string {
  try {
    writeFileSync(tokenFile(), randomBytes(12).toString('base64'), { mode: 0o600, flag: 'wx' });
  } catch {
    // The file of an earlier emulator of the same user is used.
  }
  return readFileSync(tokenFile(), 'utf8').trim();
}

/** Serves one connection. */
export function serveConsole(socket: Socket, token: string, facts: ConsoleFacts): void {
  const say = (text: string) => socket.write(`${text.replaceAll('\n', '\r\n')}\r\n`);
  const welcome = "Android Console: type 'help' for a list of commands\nOK";
  let isKnown = token === '';
  say(
    isKnown
      ? welcome
      : `Android Console: Authentication required\nAndroid Console: type 'auth <auth_token>' to authenticate\nAndroid Console: you can find your <auth_token> in \n'${tokenFile()}'\nOK`,
  );
  socket.on('error', () => undefined);
  const lines = createInterface({ input: socket });
  // The error of a client that broke off its connection comes here too.
  lines.on('error', () => undefined);
  lines.on('line', (line) => {
    const [word = '', ...rest] = line.trim().split(/\s+/);
    if (/^(quit|exit)$/.test(word) || /^[A-Z]+ \S+ HTTP\//.test(line)) {
      socket.destroy();
    } else if (word === 'auth') {
      isKnown ||= rest[0] === token;
      say(isKnown ? welcome : 'KO: authentication token does not match ~/.emulator_console_auth_token');
    } else if (word === 'kill' && isKnown) {
      socket.write('OK: killing emulator, bye bye\r\n', () => {
        socket.resetAndDestroy();
        facts.kill();
      });
    } else if (word !== '') {
      const commands = isKnown ? AFTER_AUTH : BEFORE_AUTH;
      const command = commands[[word, ...rest].join(' ')];
      say(command?.(facts, rest.join(' ')) ?? "KO: unknown command, try 'help'");
    }
  });
}
