/**
 * A candidate for a lease in a process of its own, which tests kill and freeze. While it leads, it writes its name into a ConfigMap again
 * and again. Arguments: kubeconfig, namespace, lease (and ConfigMap), identity. SIGTERM ends it cleanly, SIGUSR2 freezes it between two
 * writes.
 */
import { pino } from 'pino';
import { KubeClient } from '../../kube/client.ts';
import { CONFIG_MAPS } from '../../kube/core.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { runLeaderElection } from '../../kube/lease.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { rest } from '../../base/time.ts';
import { Transport } from '../../kube/transport.ts';

/** Milliseconds between two writes. */
const WRITE_MILLISECONDS = 50;

const [kubeconfigPath = '', namespace = '', name = '', identity = ''] = process.argv.slice(2);
const metrics = createMetrics();
const connection = await loadConnection({ kubeconfigPath });
const client = new KubeClient(new Transport(connection, { metrics }));
const stop = new AbortController();
process.once('SIGTERM', () => stop.abort());

const election = runLeaderElection({
  client: new KubeClient(new Transport(connection, { metrics })),
  namespace,
  name,
  identity,
  logger: pino({ level: 'silent' }),
  signal: stop.signal,
  metrics,
  onStartedLeading: () => {
    process.stdout.write('leading\n');
    void write();
  },
  onLost: () => {
    process.stdout.write('lost\n');
  },
});
client.guard = () => election.isHeld();
process.stdout.write('started\n');

let writing: Promise<void> = Promise.resolve();

async function write(): Promise<void> {
  for (let count = 0; !stop.signal.aborted; count += 1) {
    try {
      const data = { writer: identity, count: String(count) };
      writing = client.mergePatch(CONFIG_MAPS, { namespace, name }, { data }).then(() => undefined);
      await writing;
      await rest(WRITE_MILLISECONDS, stop.signal);
    } catch (error) {
      process.stdout.write(`refused ${(error as Error).name}\n`);
      return;
    }
  }
}

// A look at the lease does not fence writes: a process that is frozen after it would still write later.
process.on('SIGUSR2', () => {
  void writing.then(() => process.kill(process.pid, 'SIGSTOP'));
});

stop.signal.addEventListener('abort', () => {
  void writing
    .then(() => election.release())
    .then(() => election.done)
    .then(() => process.exit(0));
});
