/**
 * Starts a cluster that continues to run after this command.
 *
 *     node hack/cluster.ts up --name x [--hosts 600] [--operator 1] [--dpi-max 320]
 *     node hack/cluster.ts down --name x
 *
 * State is in `.berth/x/`: the administrator's kubeconfig, operator.pid, and logs.
 */
import { parseArgs } from 'node:util';
import { startCluster, stopCluster } from './cluster/index.ts';
import { bundle } from './bundle.ts';
import { runCommand } from './command.ts';

/** Largest number of hosts. The API server could store many more objects, but a larger number is probably a typing error. */
const MOST_HOSTS = 10_000;

function wholeNumber(name: string, text: string, most: number): number {
  const value = Number(text);
  if (!/^\d+$/.test(text) || value > most) {
    throw new Error(`--${name} must be a whole number up to ${most}, not "${text}"`);
  }
  return value;
}

function dpiMaximum(text: string): 240 | 320 {
  if (text === '240') {
    return 240;
  }
  if (text === '320') {
    return 320;
  }
  throw new Error(`--dpi-max must be 240 or 320, not "${text}"`);
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      name: { type: 'string', default: 'dev' },
      hosts: { type: 'string', default: '0' },
      operator: { type: 'string', default: '0' },
      'dpi-max': { type: 'string', default: '240' },
    },
  });
  const [action] = positionals;
  if (action === 'down') {
    return await stopCluster(values.name);
  }
  if (action !== 'up') {
    throw new Error('say what to do: up or down');
  }
  const operator = wholeNumber('operator', values.operator, 1) === 1;
  if (operator) {
    await bundle();
  }
  const cluster = await startCluster({
    name: values.name,
    hosts: wholeNumber('hosts', values.hosts, MOST_HOSTS),
    displayDpiMaximum: dpiMaximum(values['dpi-max']),
    operator,
    bundle: operator,
    lasting: true,
  });
  process.stdout.write(`Cluster "${values.name}" is up. Try:\n\n`);
  process.stdout.write(`  export KUBECONFIG=${cluster.kubeconfig}\n  kubectl get nodes\n\n`);
  process.stdout.write(`It ends with: make cluster-down NAME=${values.name}\n`);
  await cluster.disconnect();
}

await runCommand(main);
