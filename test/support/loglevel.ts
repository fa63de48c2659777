/** Changes the level of a log while its program runs. */
import { readFileSync, writeFileSync } from 'node:fs';
import { parse, stringify } from 'yaml';
import { waitFor } from '../../hack/wait.ts';
import { readLogLines } from './loglines.ts';

/** Time limit. A program looks at its file every 10 s. */
const FOLLOWED = { deadlineMilliseconds: 60_000, intervalMilliseconds: 250 };

/** Writes `logLevel: debug` into the configuration file. Resolves when the program tells in its log that the level has changed. */
export async function setDebugLevel(configFile: string, logFile: string): Promise<void> {
  const config = parse(readFileSync(configFile, 'utf8')) as object;
  writeFileSync(configFile, stringify({ ...config, logLevel: 'debug' }));
  await waitFor(
    `the log ${logFile} to tell its new level`,
    () => readLogLines(readFileSync(logFile, 'utf8')).some(({ logLevel }) => logLevel === 'debug'),
    FOLLOWED,
  );
}
