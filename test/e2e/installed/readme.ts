/** Runs the install section of README.md word for word: the images on each node, then the label and helm. */
import { readFile } from 'node:fs/promises';
import { delimiter, dirname, join } from 'node:path';
import { inject } from 'vitest';
import { resolveChartTools } from '../../../hack/cluster/toolchain/toolchain.ts';
import { run } from '../../support/chart.ts';
import type { Installed } from '../../worlds/installed.ts';

const ROOT = join(import.meta.dirname, '..', '..', '..');

/** Returns the output of the last commands. The set-up of the tests has done the first one, `make images`. */
export async function installAsReadmeSays(berth: Installed): Promise<string> {
  const [build, imports = '', install = '', ...rest] = await commands();
  if (build?.startsWith('make images ') !== true || rest.length > 0) {
    throw new Error('README.md installs in three steps: make images, ctr images import, and helm install');
  }
  const archives = dirname(inject('archives')[0] ?? '');
  await Promise.all(berth.nodes.map((node) => node.run('sh', '-ec', `cd '${archives}'\n${imports}`)));
  const names = berth.nodes.map(({ name }) => name).join(' ');
  return await shell(install.replace('node NODE ', `node ${names} `), berth);
}

/** Returns the shell blocks of the section. */
async function commands(): Promise<string[]> {
  const text = await readFile(join(ROOT, 'README.md'), 'utf8');
  const section = /^## Install\n([\s\S]*?)^## /m.exec(text)?.[1] ?? '';
  return [...section.matchAll(/^```sh\n([\s\S]*?)^```/gm)].map(([, block = '']) => block);
}

/** Runs a script in the project's folder, with the project's own helm and kubectl. */
async function shell(script: string, { cluster }: Installed): Promise<string> {
  const folders = [dirname((await resolveChartTools()).helm), dirname(cluster.kubectlPath)];
  const environment = [
    `PATH=${[...folders, process.env['PATH']].join(delimiter)}`,
    `KUBECONFIG=${cluster.kubeconfig}`,
  ];
  const { code, stdout, stderr } = await run('env', ['-C', ROOT, ...environment, 'sh', '-ec', script]);
  if (code !== 0) {
    throw new Error(`the install section of README.md: ${stderr}${stdout}`);
  }
  return stdout;
}
