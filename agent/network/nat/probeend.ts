/** Opens the two ends of the probe: network namespaces without a name, and sockets in them. */
import { type ChildProcess, spawn } from 'node:child_process';
import { Socket } from 'node:dgram';
import { once } from 'node:events';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { ip, run } from '../commands.ts';

/** Time limit for the child process that opens the sockets. The child process needs less than a second, even on a busy host. */
const HANDOVER_TIMEOUT_MILLISECONDS = 10_000;

const CHILD_SCRIPT = `
const { createSocket } = require('node:dgram');
process.on('disconnect', () => process.exit());
for (const [index, port] of process.argv.slice(1).entries()) {
  const socket = createSocket('udp4');
  socket.bind(Number(port), () => process.send(index, socket));
}
`;

interface EndpointOptions {
  /** UDP ports of the sockets. */
  ports: readonly number[];
  /** Name of the device to which this end of the probe is connected. The device is in the network namespace of this process. */
  device: string;
  /**
   * Lines for `ip -batch` that configure this end of the probe in its own network namespace. The device of this end has the name `eth0`
   * there.
   */
  configuration: string[];
  macAddress?: string;
}

/**
 * Creates one end of the probe: an unnamed network namespace with one device and UDP sockets. A short-lived child process in the namespace
 * creates the sockets and passes them to this process. Afterwards, this process can send and receive in that namespace without a child
 * process. The namespace exists as long as a socket, so nothing remains when the agent dies. The peer of the namespace's device is
 * in the namespace of this process. This function does not bring the peer up. Returns the sockets by their ports.
 *
 * @throws ReasonedError `NetworkUnavailable` when the child does not pass the sockets; ProgramError when a network command fails.
 */
export async function openEndpoint(options: EndpointOptions): Promise<Map<number, Socket>> {
  const ports = options.ports.map(String);
  const child = spawn('unshare', ['--net', process.execPath, '--eval', CHILD_SCRIPT, ...ports], {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    // NODE_OPTIONS is not passed on, because the agent's options for Node.js are not meant for its child.
    env: { PATH: process.env['PATH'] },
  });
  const ended = once(child, 'exit');
  const sockets = new Map<number, Socket>();
  try {
    await handOver(child, sockets, options.ports);
    const mac = options.macAddress === undefined ? '' : ` address ${options.macAddress}`;
    await ip([`link add ${options.device} type veth peer name eth0${mac} netns ${child.pid}`]);
    const inside = ['link set lo up', 'link set eth0 up', ...options.configuration].join('\n');
    await run('nsenter', [`--net=/proc/${child.pid}/ns/net`, 'ip', '-batch', '-'], `${inside}\n`);
    return sockets;
  } catch (error) {
    // Open sockets would keep the network namespace. Therefore the agent also closes sockets that arrive later.
    sockets.forEach((socket) => socket.close());
    child.on('message', (_index, handle) => {
      if (handle instanceof Socket) {
        handle.close();
      }
    });
    throw error;
  } finally {
    child.kill('SIGKILL');
    await ended;
  }
}

/** Adds the sockets of the child to `sockets`, and resolves after the last one. */
function handOver(
  child: ChildProcess,
  sockets: Map<number, Socket>,
  ports: readonly number[],
): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (why: string, cause?: unknown) =>
      reject(
        new ReasonedError(
          'NetworkUnavailable',
          `The agent could not create one end of the network probe: ${why}`,
          { cause },
        ),
      );
    const timer = setTimeout(() => fail('unshare did not answer in time'), HANDOVER_TIMEOUT_MILLISECONDS);
    child.once('error', (error) => fail(error.message, error));
    child.once('exit', (code) =>
      fail(`unshare ended with code ${code}; the agent needs the right to create network namespaces`),
    );
    child.on('message', (index, handle) => {
      const port = ports[Number(index)];
      if (port === undefined || !(handle instanceof Socket)) {
        fail('unshare did not send a socket');
        return;
      }
      sockets.set(port, handle);
      if (sockets.size === ports.length) {
        clearTimeout(timer);
        resolve();
      }
    });
  });
}
