/**
 * Creates the network of a cluster with its own nodes. Each node has a namespace, and a bridge joins the namespaces. Another namespace is
 * for the control plane, and represents the world outside of the nodes. The machine's own network stays unchanged.
 */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

/** Network of the nodes. The control plane has its first address; addresses of nodes begin at 11. */
const NETWORK = '10.200.0';
const FIRST_NODE = 11;
const BRIDGE = 'nodes';
/** Network of the Pods. Pods of `node1` are in 10.244.1.0/24. */
const PODS = '10.244';

export const CONTROL_ADDRESS = `${NETWORK}.1`;

export interface NetworkAddress {
  /** Name of the node and of its folder, and a part of its namespace's name. */
  name: string;
  /** Name of the namespace in `ip netns`. */
  namespace: string;
  address: string;
  /** Range of the addresses of its Pods. */
  podRange: string;
}

/** Returns the namespace with the control plane of a cluster. */
export function controlNamespace(cluster: string): string {
  return `${cluster}-control`;
}

/** Returns names and addresses for this number of nodes. */
export function nodeAddresses(cluster: string, count: number): NetworkAddress[] {
  return Array.from({ length: count }, (_, index) => ({
    name: `node${index + 1}`,
    namespace: `${cluster}-node${index + 1}`,
    address: `${NETWORK}.${FIRST_NODE + index}`,
    podRange: `${PODS}.${index + 1}.0/24`,
  }));
}

/** Creates the namespaces and the bridge that joins them. */
export async function createNetwork(cluster: string, nodes: readonly NetworkAddress[]): Promise<void> {
  const control = controlNamespace(cluster);
  await addNamespace(control);
  await ip(control, 'link', 'add', BRIDGE, 'type', 'bridge');
  await ip(control, 'address', 'add', `${CONTROL_ADDRESS}/24`, 'dev', BRIDGE);
  await ip(control, 'link', 'set', BRIDGE, 'up');
  for (const node of nodes) {
    await addNode(control, node);
  }
  for (const node of nodes) {
    await ip(control, 'route', 'add', node.podRange, 'via', node.address);
    for (const other of nodes) {
      if (other !== node) {
        await ip(node.namespace, 'route', 'add', other.podRange, 'via', other.address);
      }
    }
  }
}

/**
 * Deletes namespaces with all their content. Before this call, all processes there must have ended. Missing namespaces are not an error.
 */
export async function removeNamespaces(names: readonly string[]): Promise<void> {
  if (names.length === 0) {
    // A machine that never made one may lack the program.
    return;
  }
  const { stdout } = await run('ip', '-json', 'netns', 'list');
  const there = (stdout.trim() === '' ? [] : JSON.parse(stdout)) as { name: string }[];
  for (const { name } of there) {
    if (names.includes(name)) {
      await run('ip', 'netns', 'delete', name);
    }
  }
}

async function addNode(control: string, { name, namespace, address }: NetworkAddress): Promise<void> {
  await addNamespace(namespace);
  await ip(control, 'link', 'add', name, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', namespace);
  await ip(control, 'link', 'set', name, 'master', BRIDGE, 'up');
  await ip(namespace, 'address', 'add', `${address}/24`, 'dev', 'eth0');
  await ip(namespace, 'link', 'set', 'eth0', 'up');
  await ip(namespace, 'route', 'add', 'default', 'via', CONTROL_ADDRESS);
  await inside(namespace, 'sysctl', '--quiet', '--write', 'net.ipv4.ip_forward=1');
}

async function addNamespace(name: string): Promise<void> {
  await run('ip', 'netns', 'add', name);
  await ip(name, 'link', 'set', 'lo', 'up');
}

async function ip(namespace: string, ...parameters: string[]): Promise<void> {
  await inside(namespace, 'ip', ...parameters);
}

async function inside(namespace: string, program: string, ...parameters: string[]): Promise<void> {
  await run('nsenter', `--net=/run/netns/${namespace}`, program, ...parameters);
}

async function run(program: string, ...parameters: string[]): Promise<{ stdout: string }> {
  return await promisify(execFile)(program, parameters);
}
