import { spawn } from 'node:child_process';
import { globSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { expect, test } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { MACHINE_MEMORY_OVERHEAD_BYTES } from '../api/v1alpha1/machine.ts';
import { HOST_MARK } from '../api/v1alpha1/names.ts';
import { parseQuantity } from '../api/v1alpha1/quantity.ts';
import { run } from '../base/exec.ts';
import { identify } from '../agent/processes/process.ts';
import { parseConfig } from '../operator/config/config.ts';
import { makeFolder } from '../test/support/folder.ts';
import { waitFor } from './wait.ts';

const ROOT = join(import.meta.dirname, '..');
/** Time limit of a script that only starts small programs. */
const SCRIPT_MILLISECONDS = 30_000;

interface Size {
  cpu: number;
  memory: string;
}

async function read(file: string): Promise<string> {
  return await readFile(join(ROOT, file), 'utf8');
}

function expectFits(machine: Size, host: Size): void {
  expect(machine.cpu).toBeLessThanOrEqual(host.cpu);
  const requested = parseQuantity(machine.memory) + BigInt(MACHINE_MEMORY_OVERHEAD_BYTES);
  expect(requested).toBeLessThanOrEqual(parseQuantity(host.memory));
}

test('the first VM of README.md fits the share of its hosts', async () => {
  const readme = await read('README.md');
  const [, cpu = '', memory = ''] =
    /agent\.share\.cpu=(\d+) --set agent\.share\.memory=(\w+)/.exec(readme) ?? [];
  const [, example = ''] = /^kubectl apply -f (examples\/.*)$/m.exec(readme) ?? [];
  const objects = parseAllDocuments(await read(example)).map(
    (one) => one.toJS() as { kind: string; spec: Size },
  );
  const configs = objects.filter(({ kind }) => kind === 'VMConfig');
  expect(configs).toHaveLength(1);
  for (const { spec } of configs) {
    expectFits(spec, { cpu: Number(cpu), memory });
  }
});

test('a VM without sizes fits the share that a host of the chart has by default', async () => {
  const { agent } = parse(await read('charts/berth/values.yaml')) as { agent: { share: Size } };
  const { cpu, memory } = parseConfig({}, 'test').defaults;
  expectFits({ cpu, memory }, agent.share);
});

test.each(['README.md', 'docs/operate/install.md'])(
  'the agents of %s run on nodes with a label that no kubelet can set on its own Node',
  async (file) => {
    const text = await read(file);
    const [, label] = /^kubectl label node NODE ([^=\s]+)=true$/m.exec(text) ?? [];
    const [, selector] = /agent\.nodeSelector\.([^=\s]+)=true/.exec(text) ?? [];
    expect(selector?.replaceAll('\\.', '.')).toBe(label);
    // The admission plugin NodeRestriction protects only labels with this prefix.
    expect(label).toMatch(/^([\w.-]+\.)?node-restriction\.kubernetes\.io\//);
  },
);

test.each(['charts/berth/templates/monitoring.yaml', 'docs/reference/metrics.md'])(
  'Prometheus sends its token only to Nodes that cannot call themselves hosts (%s)',
  async (file) => {
    const selectors = (await read(file)).matchAll(/\{role: node, label: ([^}]+)\}/gi);
    expect([...selectors].map(([, label]) => label)).toEqual([HOST_MARK]);
  },
);

test.each(globSync('examples/ci/*/*.sh', { cwd: ROOT }))('a shell can read %s', async (file) => {
  expect(await run('sh', ['-n', join(ROOT, file)], { timeoutMilliseconds: SCRIPT_MILLISECONDS })).toBe('');
});

test.each([0, 7])(
  'the script of the image of GitHub starts the runner with its configuration, and powers off when it ends with %i',
  async (code) => {
    const folder = makeFolder();
    const programs = {
      // The tests are not always root, so no other user runs the program.
      su: 'echo "$1 $2 $3, $USER in $HOME"; exec sh -c "$4"',
      'run.sh': `echo "$ACTIONS_RUNNER_INPUT_JITCONFIG $#"; exit ${code}`,
      poweroff: 'echo off',
    };
    for (const [name, text] of Object.entries(programs)) {
      await writeFile(join(folder, name), `#!/bin/sh\n${text}\n`, { mode: 0o755 });
    }
    await writeFile(join(folder, 'user-data'), 'secret==\n');
    const script = join(ROOT, 'examples/ci/github/berth-runner.sh');
    const output = await run(script, [join(folder, 'user-data'), folder, 'root'], {
      environment: { PATH: `${folder}:${process.env['PATH']}`, POWEROFF: 'poweroff' },
      timeoutMilliseconds: SCRIPT_MILLISECONDS,
    });
    expect(output).toBe('-m root -c, root in /root\nsecret== 0\noff\n');
  },
);

test('the script of a shell that is killed prolongs the life of its VM no more', async () => {
  const folder = makeFolder();
  const log = join(folder, 'log');
  const programs = {
    berth: `case $2 in deploy) echo job-1 ;; ssh) exec sleep ${SCRIPT_MILLISECONDS / 1000} ;; prolong) echo $PPID >>${log} ;; esac`,
    'ssh-keygen': 'exit 0',
    // The end of the VM includes the time limit of its deployment. A prolongation before that would be refused, so this clock is later.
    date: `case $1 in +%s) [ -e ${log} ] && echo 9999 || { : >${log}; echo 0; } ;; *) echo 1970-01-01T00:10:02Z ;; esac`,
  };
  for (const [name, text] of Object.entries(programs)) {
    await writeFile(join(folder, name), `#!/bin/sh\n${text}\n`, { mode: 0o755 });
  }
  await writeFile(join(folder, 'step'), 'true\n');
  const job = spawn('sh', [join(ROOT, 'examples/ci/shell/job.sh'), 'small', join(folder, 'step')], {
    env: { PATH: `${folder}:${process.env['PATH']}`, LIFE: '2' },
    stdio: 'ignore',
    detached: true,
  });
  try {
    const holder = await waitFor('the first prolongation', async () => {
      const lines = await readFile(log, 'utf8').catch(() => '');
      return Number(lines.split('\n')[0]) || undefined;
    });
    expect(await identify(holder)).toBeDefined();
    job.kill('SIGKILL');
    await waitFor('the holder to end', async () => (await identify(holder)) === undefined);
  } finally {
    process.kill(-(job.pid ?? 0), 'SIGKILL');
  }
});

test('each example is applied by a test or the demo, which reaches its object', async () => {
  const users = globSync(['test/**/*.test.ts', 'hack/demo.ts'], { cwd: ROOT });
  const text = (await Promise.all(users.map(read))).join('\n');
  const isUsed = (name: string): boolean =>
    [`applyExample('${name}'`, `['${name}', `, `'${name}.yaml'`].some((use) => text.includes(use));
  const names = globSync('examples/*.yaml', { cwd: ROOT }).map((file) => basename(file, '.yaml'));
  expect(names.filter((name) => !isUsed(name))).toEqual([]);
});
