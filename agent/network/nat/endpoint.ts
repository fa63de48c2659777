/**
 * Creates one end of the probe: an unnamed network namespace with one device and one UDP socket. A short-lived child process in the
 * namespace creates the socket and passes it to this process. This process then sends and receives there without another child. The
 * namespace exists as long as the socket, so an agent that dies leaves nothing.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { Socket } from 'node:dgram';
import { once } from 'node:events';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { ip, run } from '../commands.ts';

/** Time limit for the child process. It starts Node.js and binds one socket in less than a second, even on a busy host. */
const HANDOVER_TIMEOUT_MILLISECONDS = 10_000;

const CHILD_SCRIPT = `
const socket = require('node:dgram').createSocket('udp4');
process.on('disconnect', () => process.exit());
socket.bind(Number(process.argv[1]), () => process.send('socket', socket));
`;

export interface EndpointOptions {
  /** Name of the device in the namespace of this process. */
  device: string;
  /** Commands of `ip` inside the namespace, without the word `ip`. The device is called eth0 there. */
  configuration: string[];
  macAddress?: string;
  /** UDP port of the socket, which is bound on every address. */
  port: number;
}

/**
 * Creates namespace, device pair and socket. The device in the namespace of this process stays down and unconnected.
 *
 * @throws ReasonedError `NetworkUnavailable` when the child does not pass a socket; ProgramError when a network command fails.
 */
export async function openEndpoint(options: EndpointOptions): Promise<Socket> {
  const child = spawn('unshare', ['--net', process.execPath, '--eval', CHILD_SCRIPT, String(options.port)], {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    // NODE_OPTIONS is omitted because the agent's options do not apply to its child.
    env: { PATH: process.env['PATH'] },
  });
  const ended = once(child, 'exit');
  try {
    const socket = await handedOver(child);
    const mac = options.macAddress === undefined ? '' : ` address ${options.macAddress}`;
    await ip([`link add ${options.device} type veth peer name eth0${mac} netns ${child.pid}`]);
    const inside = ['link set lo up', 'link set eth0 up', ...options.configuration].join('\n');
    await run('nsenter', [`--net=/proc/${child.pid}/ns/net`, 'ip', '-batch', '-'], `${inside}\n`);
    return socket;
  } finally {
    child.kill('SIGKILL');
    await ended;
  }
}

function handedOver(child: ChildProcess): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const fail = (why: string, cause?: unknown) =>
      reject(
        new ReasonedError('NetworkUnavailable', `An end of the probe could not be made: ${why}`, { cause }),
      );
    const timer = setTimeout(() => fail('unshare did not answer in time'), HANDOVER_TIMEOUT_MILLISECONDS);
    child.once('error', (error) => fail(error.message, error));
    child.once('exit', (code) =>
      fail(`unshare ended with code ${code}; the agent needs the right to make network namespaces`),
    );
    child.once('message', (_message, handle) => {
      clearTimeout(timer);
      if (handle instanceof Socket) {
        resolve(handle);
      } else {
        fail('unshare sent no socket');
      }
    });
  });
}
