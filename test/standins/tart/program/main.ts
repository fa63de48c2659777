/**
 * The stand-in for the program `tart` as a program. `run` sleeps until a signal ends the machine, or runs a guest in QEMU. `create` can sleep too.
 */
import { spawn } from 'node:child_process';
import { existsSync, rmSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import {
  type Answer,
  FAILED,
  NOT_SUSPENDED,
  SHUT_DOWN,
  SOFTNET_ENDED,
  STOPPED,
  SUSPENDED,
} from './answers.ts';
import { isAlive } from './life.ts';
import { serveGuestAgent } from './guestagent.ts';
import { type GuestMachine, QemuGuest } from './qemuguest.ts';
import { serveScreen } from './screen.ts';
import { type RunningMachine, type Signal, TartStandIn } from './standin.ts';

const SIGNALS: readonly Signal[] = ['SIGINT', 'SIGUSR1', 'SIGUSR2'];
/** A sleeping machine lives at most so long, so that none is left of a test that was killed. */
const LONGEST_MILLISECONDS = 600_000;

function end({ code, stdout, stderr }: Answer): void {
  process.stdout.write(stdout);
  process.stderr.write(stderr);
  process.exitCode = code;
}

function find(name: string): string | undefined {
  const folders = (process.env['PATH'] ?? '').split(delimiter);
  return folders.map((folder) => join(folder, name)).find((path) => existsSync(path));
}

/**
 * Starts the program that filters the packets of a guest, if the machine has one. It ends with its standard input, also if this process is
 * killed. `ended` is called if it ends by itself.
 */
function startSoftnet({ softnet }: RunningMachine, ended: () => void): void {
  if (softnet !== undefined) {
    const [program, ...options] = softnet;
    const child = spawn(program, options, { stdio: ['pipe', 'ignore', 'inherit'] });
    child.once('exit', ended);
    child.stdin.on('error', () => undefined);
    child.unref();
    (child.stdin as unknown as { unref: () => void }).unref();
  }
}

const parameters = process.argv.slice(2);
const tart = new TartStandIn(process.env['TART_HOME'] ?? '', {
  isAlive,
  send: (pid, signal) => void process.kill(pid, signal),
  find,
});
/** Runs a machine that sleeps. */
async function sleepAs(machine: RunningMachine): Promise<void> {
  const timer = setTimeout(() => undefined, LONGEST_MILLISECONDS);
  const leave = (answer: Answer | undefined): void => {
    if (answer !== undefined) {
      clearTimeout(timer);
      end(answer);
    }
  };
  startSoftnet(machine, () => leave(SOFTNET_ENDED));
  SIGNALS.forEach((signal) => process.on(signal, () => leave(machine.onSignal(signal))));
  process.stdout.write(machine.greeting);
  leave(machine.end);
  if (machine.end === undefined && tart.has('guest-agent')) {
    await serveGuestAgent(tart.controlSocket(machine.name), tart.guestHome(machine.name), () =>
      leave(SHUT_DOWN),
    );
  }
  if (machine.end === undefined && parameters.includes('--vnc-experimental')) {
    process.stdout.write(`VNC server is running at ${await serveScreen()}\n`);
  }
}

/** Runs a machine whose guest is a real one in QEMU. */
async function runGuest(machine: RunningMachine, files: GuestMachine): Promise<void> {
  const guest = await QemuGuest.start(files);
  setTimeout(() => void guest.cut(), LONGEST_MILLISECONDS).unref();
  let answer: Answer | undefined;
  const suspend = async (): Promise<void> => {
    if (machine.isSuspendable) {
      await guest.save(tart.memory(machine.name));
    }
    answer = machine.isSuspendable ? SUSPENDED : NOT_SUSPENDED;
    await guest.cut();
  };
  process.on('SIGUSR1', () => void suspend());
  process.on('SIGUSR2', () => void guest.press());
  process.on('SIGINT', () => {
    answer = STOPPED;
    void guest.cut();
  });
  rmSync(tart.memory(machine.name), { force: true });
  process.stdout.write(machine.greeting);
  const isOff = await guest.ended;
  end(answer ?? (isOff ? SHUT_DOWN : FAILED));
}

if (parameters[0] === 'run') {
  const begun = tart.begin(parameters, process.pid);
  if ('code' in begun) {
    end(begun);
  } else {
    await (begun.guest === undefined ? sleepAs(begun) : runGuest(begun, begun.guest));
  }
} else {
  end(tart.call(parameters));
  if (parameters[0] === 'create' && tart.has('install-lasts')) {
    setTimeout(() => undefined, LONGEST_MILLISECONDS);
  }
}
