import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { makeTerminal } from '../test/fixtures/terminals.ts';
import { makeFolder } from '../test/support/folder.ts';
import { run } from './program.ts';

/** Runs a program of the executor with these variables. No cluster can be reached. */
async function call(args: readonly string[], environment: Record<string, string> = {}) {
  const folder = makeFolder();
  const kubeconfig = join(folder, 'kubeconfig');
  const document = {
    clusters: [{ name: 'a', cluster: { server: 'http://127.0.0.1:1' } }],
    contexts: [{ name: 'a', context: { cluster: 'a', user: 'a' } }],
    'current-context': 'a',
    users: [{ name: 'a', user: { token: 'a' } }],
  };
  await writeFile(kubeconfig, JSON.stringify(document));
  const written = { out: '', err: '' };
  const terminal = makeTerminal({
    environment: { HOME: folder, TMPDIR: folder, KUBECONFIG: kubeconfig, ...environment },
    out: (text) => void (written.out += text),
    err: (text) => void (written.err += text),
  });
  return { code: await run(['gitlab', ...args], terminal), ...written };
}

const IMAGE = { BERTH_GITLAB_VM: 'gitlab-7', CUSTOM_ENV_CI_JOB_IMAGE: 'registry.example/mac:1' };

it('config names another VM for each attempt of a job, and the folders of jobs', async () => {
  const args = ['config', '--builds-dir', '/Users/ci/builds'];
  const [first, second] = await Promise.all([
    call(args, { CUSTOM_ENV_CI_JOB_ID: '4711' }),
    call(args, { CUSTOM_ENV_CI_JOB_ID: "7'; rm -rf /" }),
  ]);
  const answer = JSON.parse(first.out) as { job_env: Record<string, string> };
  expect(answer).toMatchObject({
    builds_dir: '/Users/ci/builds',
    cache_dir: '/tmp/cache',
    builds_dir_is_shared: false,
    driver: { name: 'Berth' },
    job_env: { BERTH_GITLAB_VM: expect.stringMatching(/^gitlab-4711-[0-9a-f]{16}$/) },
  });
  expect(second.out).toMatch(/"BERTH_GITLAB_VM":"gitlab-job-[0-9a-f]{16}"/);
  expect([first.code, first.err]).toEqual([0, '']);
});

it.each([
  [[], 'allows no image'],
  [
    ['--allow-image', 'registry.example/mac', '--allow-image', 'other*'],
    'allows registry.example/mac, other*',
  ],
])(
  'prepare with %j fails the job if it asks for another image, and does not repeat it',
  async (flags, says) => {
    const { code, err } = await call(['prepare', '--config', 'mac', ...flags], IMAGE);
    expect([code, err]).toEqual([1, expect.stringContaining(says)]);
    const other = { ...IMAGE, BUILD_FAILURE_EXIT_CODE: '17' };
    expect(await call(['prepare', '--config', 'mac', ...flags], other)).toMatchObject({ code: 17 });
  },
);

it('prepare ends with the code for failures of the system if no cluster answers, also for an allowed image', async () => {
  const { code, err } = await call(['prepare', '--allow-image', 'registry.example/*'], IMAGE);
  expect([code, err]).toEqual([2, expect.stringContaining('The API server does not answer: ')]);
});

it('run fails the system, and not the job, if no VM was prepared', async () => {
  const environment = { BERTH_GITLAB_VM: 'gitlab-7', SYSTEM_FAILURE_EXIT_CODE: '18' };
  const answer = { BUILD_EXIT_CODE_FILE: join(makeFolder(), 'code') };
  const { code, err } = await call(['run', 'script', 'build_script'], { ...environment, ...answer });
  expect([code, err]).toEqual([18, 'error: VM gitlab-7 was not prepared\n']);
  await expect(readFile(answer.BUILD_EXIT_CODE_FILE)).rejects.toThrow('ENOENT');
});

it('says which variable of the runner is missing', async () => {
  expect(await call(['cleanup'])).toMatchObject({
    code: 2,
    err: expect.stringContaining('BERTH_GITLAB_VM is missing'),
  });
});
