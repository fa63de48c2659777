/** `node server/main.ts [--config FILE] [--kubeconfig FILE]` starts the HTTP API. */
import '../base/heap.ts';
import { parseArgs } from 'node:util';
import { pino } from 'pino';
import { ConfigError } from '../base/config.ts';
import { surviveRejections } from '../kube/rejections.ts';
import { loadConfig } from './config.ts';
import { startServer } from './server.ts';

/** Exit code after a mistake in the configuration or arguments, which the caller must correct. */
const EXIT_CONFIGURATION = 2;
const EXIT_FAILURE = 1;

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { config: { type: 'string' }, kubeconfig: { type: 'string' } } });
  const config = loadConfig(values.config);
  const logger = pino({ name: 'berth-server', level: config.logLevel });
  surviveRejections(logger);
  const exit = (code: number) => {
    logger.flush();
    process.exit(code);
  };
  const server = await startServer({ config, kubeconfigPath: values.kubeconfig, logger });
  const stop = () => {
    server.stop().then(
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

try {
  await main();
} catch (error) {
  const isMistake = error instanceof ConfigError || (error instanceof TypeError && 'code' in error);
  process.stderr.write(
    `${error instanceof Error ? (isMistake ? error.message : error.stack) : String(error)}\n`,
  );
  process.exit(isMistake ? EXIT_CONFIGURATION : EXIT_FAILURE);
}
