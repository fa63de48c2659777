/** Completion by the command `berth` in the terminals of real shells, with names from a real API server. */
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';
import { VMs } from '../fixtures/vms.ts';
import { sharedCluster } from '../support/cluster.ts';
import { BerthCommand } from '../wires/berth.ts';
import { TestTerminal } from '../wires/terminal.ts';

const NAMESPACE = `platform-complete-${randomBytes(4).toString('hex')}`;
const OTHER_NAMESPACE = `${NAMESPACE}-other`;
/** Each shell without the files of its user, but with its own start for the test. bash lists the words at the second Tab. */
const SHELLS = [
  { name: 'bash', start: 'PS1="ready> "', shell: ['bash', '--norc', '-i'], list: ['Tab', 'Tab'] },
  {
    name: 'zsh',
    start: 'PS1="ready> "; autoload -U compinit; compinit -D -u',
    shell: ['zsh', '-f', '-i'],
    list: ['Tab'],
  },
  {
    name: 'fish',
    start: 'function fish_prompt; echo "ready> "; end',
    shell: ['fish', '--no-config', '-i'],
    list: ['Tab'],
  },
] as const;

let cluster: Cluster;
let command: BerthCommand;
let folder: string;

beforeAll(async () => {
  cluster = await sharedCluster();
  folder = await mkdtemp(join(tmpdir(), 'berth-complete-'));
  await Promise.all([NAMESPACE, OTHER_NAMESPACE].map((name) => cluster.createNamespace(name)));
  await new VMs(cluster, NAMESPACE).createMany(['desk-one', 'desk-two', 'server']);
  await new VMs(cluster, OTHER_NAMESPACE).create('laptop');
  command = await BerthCommand.make(cluster.kubeconfig);
});

afterAll(async () => {
  await command?.[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
  await cluster.kubectl(['delete', 'namespace', NAMESPACE, OTHER_NAMESPACE, '--wait=false']);
});

describe.each(SHELLS)('$name', ({ name, start, shell, list }) => {
  let path: string;

  beforeAll(async () => {
    const script = await command.run(['completion', name]);
    expect(script).toMatchObject({ code: 0, err: '' });
    path = join(folder, name);
    await writeFile(path, `${start}\n${script.out}`);
  });

  /** Types the beginning of a line and asks for the words. Returns the screen when it shows all of them. */
  async function offered(line: string, keys: readonly string[], ...expected: string[]): Promise<string> {
    const environment = { ...command.installed(), HOME: folder, BERTH_NAMESPACE: NAMESPACE };
    await using terminal = await TestTerminal.open({ environment, shell });
    await terminal.type(`. ${path}\n`);
    await terminal.shows(/^ready>$/m);
    await terminal.type(line);
    await terminal.press(...keys);
    await terminal.shows(new RegExp(expected.map((word) => `(?=[^]*\\b${word}\\b)`).join('')));
    return await terminal.shown();
  }

  it('offers the verbs that begin like the word', async () => {
    expect(await offered('berth vm st', list, 'start', 'stop')).not.toContain('suspend');
  });

  it('offers the names of the VMs in the namespace, completes one, and completes values of flags', async () => {
    const [names] = await Promise.all([
      offered('berth vm get ', list, 'desk-one', 'desk-two', 'server'),
      offered('berth vm ssh s', ['Tab'], 'ssh server'),
      offered(`berth vm get -n ${OTHER_NAMESPACE} `, ['Tab'], 'laptop'),
      offered(`berth vm wait server -n ${OTHER_NAMESPACE.slice(0, -2)}`, ['Tab'], OTHER_NAMESPACE),
      offered('berth vm wait server --for=sus', ['Tab'], 'suspended'),
    ]);
    expect(names).not.toContain('--help');
    expect(names).not.toContain('laptop');
  });
});
