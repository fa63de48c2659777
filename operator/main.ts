/**
 * `node operator/main.ts [--config FILE] [--kubeconfig FILE]` starts the operator.
 * `node operator/main.ts uninstall …` removes the objects that operator and agents wrote: see uninstall.ts.
 */
import '../base/heap.ts';
import { parseArgs } from 'node:util';
import { setFlagsFromString } from 'node:v8';
import { pino } from 'pino';
import { ConfigError } from '../base/config.ts';
import { loadConfig } from './config/config.ts';
import { KubeClient } from '../kube/client.ts';
import { loadConnection } from '../kube/credentials.ts';
import { createMetrics } from '../kube/metrics.ts';
import { surviveRejections } from '../kube/rejections.ts';
import { Transport } from '../kube/transport.ts';
import { Operator } from './operator.ts';
import { readUninstallOptions, RefusedError, uninstall } from './uninstall.ts';

// V8's second optimizing compiler (TurboFan) needs 4 MB of memory. Without TurboFan, the CPU time for 500 VMs was the same.
// TurboFan stays on if the first optimizing compiler (Maglev) is not built in.
if (Number(Reflect.get(process.config.variables, 'v8_enable_maglev')) === 1) {
  setFlagsFromString('--no-turbofan');
}

/** Exit code after a mistake in the configuration or arguments, which the caller must correct. */
const EXIT_CONFIGURATION = 2;
const EXIT_FAILURE = 1;

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { config: { type: 'string' }, kubeconfig: { type: 'string' } } });
  const config = loadConfig(values.config);
  const logger = pino({ name: 'berth-operator', level: config.logLevel });
  surviveRejections(logger);
  const exit = (code: number) => {
    logger.flush();
    process.exit(code);
  };
  const operator = await Operator.start({
    config,
    kubeconfigPath: values.kubeconfig,
    podName: process.env['BERTH_POD_NAME'],
    logger,
    onLost: () => exit(EXIT_FAILURE),
  });
  const stop = () => {
    operator.stop().then(
      () => exit(0),
      (error: unknown) => {
        logger.error({ err: error }, 'stopped with an error');
        exit(EXIT_FAILURE);
      },
    );
  };
  process.once('SIGTERM', stop);
  process.once('SIGINT', stop);
}

async function runUninstall(args: readonly string[]): Promise<void> {
  const options = readUninstallOptions(args);
  const transport = new Transport(await loadConnection(), {
    metrics: createMetrics(),
    userAgent: 'berth-uninstall',
  });
  try {
    await uninstall(new KubeClient(transport), options, pino({ name: 'berth-uninstall' }));
  } finally {
    await transport.close();
  }
}

const [, , command, ...rest] = process.argv;
try {
  await (command === 'uninstall' ? runUninstall(rest) : main());
} catch (error) {
  const isMistake = error instanceof ConfigError || (error instanceof TypeError && 'code' in error);
  const isForPeople = isMistake || error instanceof RefusedError;
  process.stderr.write(
    `${error instanceof Error ? (isForPeople ? error.message : error.stack) : String(error)}\n`,
  );
  process.exit(isMistake ? EXIT_CONFIGURATION : EXIT_FAILURE);
}
