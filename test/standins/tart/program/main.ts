/** The stand-in for the program `tart` as a program. `run` sleeps until a signal ends the machine, and `create` can sleep too. */
import { isAlive } from './life.ts';
import { serveGuestAgent } from './guestagent.ts';
import { serveScreen } from './screen.ts';
import { TartStandIn, type Signal } from './standin.ts';

const SIGNALS: readonly Signal[] = ['SIGINT', 'SIGUSR1', 'SIGUSR2'];
/** A sleeping machine lives at most so long, so that none is left of a test that was killed. */
const LONGEST_MILLISECONDS = 600_000;

function end({ code, stdout, stderr }: { code: number; stdout: string; stderr: string }): void {
  process.stdout.write(stdout);
  process.stderr.write(stderr);
  process.exitCode = code;
}

const parameters = process.argv.slice(2);
const tart = new TartStandIn(process.env['TART_HOME'] ?? '', {
  isAlive,
  send: (pid, signal) => void process.kill(pid, signal),
});
if (parameters[0] === 'run') {
  const begun = tart.begin(parameters, process.pid);
  if ('code' in begun) {
    end(begun);
  } else {
    const timer = setTimeout(() => undefined, LONGEST_MILLISECONDS);
    const leave = (answer: Parameters<typeof end>[0] | undefined): void => {
      if (answer !== undefined) {
        clearTimeout(timer);
        end(answer);
      }
    };
    SIGNALS.forEach((signal) => process.on(signal, () => leave(begun.onSignal(signal))));
    process.stdout.write(begun.greeting);
    leave(begun.end);
    if (begun.end === undefined && tart.has('guest-agent')) {
      const off = { code: 0, stdout: 'guest has stopped the virtual machine\n', stderr: '' };
      await serveGuestAgent(tart.controlSocket(begun.name), () => leave(off));
    }
    if (begun.end === undefined && parameters.includes('--vnc-experimental')) {
      process.stdout.write(`VNC server is running at ${await serveScreen()}\n`);
    }
  }
} else {
  end(tart.call(parameters));
  if (parameters[0] === 'create' && tart.has('install-lasts')) {
    setTimeout(() => undefined, LONGEST_MILLISECONDS);
  }
}
