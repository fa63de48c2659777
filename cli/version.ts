/** Runs the command `version`, which shows the versions of this command and of Berth's parts in the cluster. */
import { VERSION } from '../api/v1alpha1/version.ts';
import { withCluster } from './cluster.ts';
import { described, Interrupted, withLogin } from './errors.ts';
import type { Globals } from './globals.ts';
import { print } from './output.ts';
import type { Terminal } from './terminal.ts';
import { type Version, type Versions, versionsOf } from './versions.ts';

/**
 * Time limit for reading the versions in the cluster. The limit is short, so that users soon see the version of this command even if the
 * cluster does not answer.
 */
const LIMIT_MILLISECONDS = 5_000;

/**
 * Writes the versions. If the cluster does not answer, writes only the version of this command. In the table formats, also writes to the
 * standard error why versions are missing.
 */
export async function showVersions(terminal: Terminal, globals: Globals): Promise<void> {
  const { versions, problems } = await readVersions(terminal, globals);
  await print<Version>(terminal, globals.output, {
    rows: [{ name: 'berth', version: VERSION }, ...versions],
    columns: [
      { header: 'COMPONENT', value: ({ name }) => name },
      { header: 'VERSION', value: ({ version }) => version },
      { header: 'HOSTS', value: ({ hosts }) => hosts },
    ],
    itemOf: (row) => row,
  });
  if (globals.output === 'table' || globals.output === 'wide') {
    terminal.err(problems.map((problem) => `${withLogin(problem, terminal.name)}\n`).join(''));
  }
}

async function readVersions(terminal: Terminal, globals: Globals): Promise<Versions> {
  const signal = AbortSignal.any([terminal.signal, AbortSignal.timeout(LIMIT_MILLISECONDS)]);
  try {
    return await withCluster(terminal, globals, async (cluster) => await versionsOf(cluster, signal));
  } catch (error) {
    if (error instanceof Interrupted) {
      throw error;
    }
    return {
      versions: [],
      problems: [`The versions of the cluster are not known: ${described(error).message}`],
    };
  }
}
