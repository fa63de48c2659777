/**
 * One far end of the probe: a network namespace without a name, holding one device and one UDP socket. The socket is
 * made by a short-lived child inside the namespace and handed to this process, which then sends and receives there
 * without starting anything. The namespace lives as long as the socket, so that an agent that dies leaves nothing.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { Socket } from 'node:dgram';
import { once } from 'node:events';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { ip, run } from '../commands.ts';

/** A child that starts Node and binds one socket needs well under a second, even on a busy host. */
const HANDOVER_TIMEOUT_MILLISECONDS = 10_000;

const CHILD_SCRIPT = `
const socket = require('node:dgram').createSocket('udp4');
process.on('disconnect', () => process.exit());
socket.bind(Number(process.argv[1]), () => process.send('socket', socket));
`;

export interface EndpointOptions {
  /** The device's name in this process' own namespace. */
  device: string;
  /** What follows `ip` inside the namespace; the device is called eth0 there. */
  configuration: string[];
  macAddress?: string;
  /** UDP port that the socket is bound to, on every address. */
  port: number;
}

/** Makes namespace, device pair and socket; the device in this namespace is left down and unconnected. */
export async function openEndpoint(options: EndpointOptions): Promise<Socket> {
  const child = spawn('unshare', ['--net', process.execPath, '--eval', CHILD_SCRIPT, String(options.port)], {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    // Not NODE_OPTIONS: what the agent was started with is nothing to its child.
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
      reject(new ReasonedError('NetworkUnavailable', `the probe's end could not be made: ${why}`, { cause }));
    const timer = setTimeout(() => fail('timed out'), HANDOVER_TIMEOUT_MILLISECONDS);
    child.once('error', (error) => fail(error.message, error));
    child.once('exit', (code) =>
      fail(`unshare ended with ${code}; it needs the right to make network namespaces`),
    );
    child.once('message', (_message, handle) => {
      clearTimeout(timer);
      if (handle instanceof Socket) {
        resolve(handle);
      } else {
        fail('no socket came');
      }
    });
  });
}
