import { execFileSync } from 'node:child_process';
import { expect, it } from 'vitest';
import { REMOVED, Redactor } from './redact.ts';
import { tarOf } from './bundle.ts';

const JWT = 'eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl';
/** Objects with a secret in each place in which a user could put one. Most secrets have the form `plantNNxx`. */
const OBJECTS = [
  {
    kind: 'VM',
    metadata: {
      name: 'mac',
      annotations: {
        'kubectl.kubernetes.io/last-applied-configuration': '{"userData":"plant01xx"}',
        note: 'plant02xx',
      },
      labels: { team: 'plant03xx', 'berth.dev/vm-uid': 'kept-uid' },
    },
    spec: {
      image: 'registry.example/guest:1',
      userData: '#cloud-config\npassword: plant04xx\n',
      guestMetadata: { job: 'plant05xx', phrase: 'correcthorsebattery', marked: 'plant27xx!' },
      userDataSecretRef: { name: 'kept-secret-name', key: 'kept-key' },
    },
    status: { failure: { message: 'GET https://user:plant06xx@files.example/a?sig=plant07xx failed' } },
  },
  {
    kind: 'Image',
    spec: {
      source: { http: { url: 'https://files.example/a.img?token=plant08xx' } },
      description: 'pw plant09xx',
    },
  },
  { kind: 'Secret', data: { password: 'plant10xx' }, stringData: { a: 'plant11xx' } },
  {
    kind: 'Pod',
    spec: {
      containers: [
        {
          name: 'a',
          env: [{ name: 'PROXY', value: 'http://a:plant12xx@proxy' }],
          args: ['--token', 'plant13xx'],
        },
      ],
    },
  },
  { kind: 'Event', note: 'login failed with password plant14xx at registry' },
];
const LOG = [
  '{"level":30,"msg":"call","authorization":"Bearer plant15xx-long"}',
  'POST / Authorization: Basic cGxhbnQxNnh4OmFiYw== from host',
  `token ${JWT} is used`,
  'error: {\\"password\\":\\"plant17xx\\",\\"user\\":\\"a\\"}',
  'api_key=plant18xx next',
  'pull of bob:plant19xx@registry.example/a failed',
  'GET /download?X-Signature=plant20xx HTTP/1.1',
  '-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEplant21xx\n-----END EC PRIVATE KEY-----',
  'Set-Cookie: session=plant22xx; Path=/',
  'join with abcdef.0123456789abcdef now',
  'key AKx7Qm2Zp9Lw4Rt8Vb found',
  'the guest printed plant05xx and correcthorsebattery',
  'the guest printed plant05xx. It wrote plant05xx! And plant27xx!.',
  '{"password":"a\\"plant28xx","user":"a"}',
  'error: {\\"password\\":\\"a\\\\\\"plant29xx\\",\\"user\\":\\"a\\"}',
  'password => plant30xx',
  'DB_PASS=plantpass "pass": "plantwords"',
  '-----BEGIN PGP PRIVATE KEY BLOCK-----\nplant31xx\n-----END PGP PRIVATE KEY BLOCK-----',
  'berth-agent --registry-password plantword run',
  '{\\"auths\\":{\\"registry.example\\":{\\"auth\\":\\"cGxhbnQyM3h4\\"}}}',
  'client-key-data: LS0tplant24/plant25+x/plant26==',
].join('\n');

it('leaves none of the planted secrets, in objects or texts', () => {
  const redactor = new Redactor();
  const objects = OBJECTS.map((object) => redactor.fields(object));
  const written = `${JSON.stringify(redactor.texts(objects))}\n${redactor.text(LOG)}`;
  const found = written.match(/plant\w+|correcthorse\w*|eyJ\S+|cGxhbnQ\S*|AKx7\w*|abcdef\.\w+|c2lnbm\w*/g);
  expect(found).toBeNull();
});

it('keeps the facts that help', () => {
  const redactor = new Redactor();
  const facts = [
    'Secret regcred is not in the namespace',
    'Pulled registry.example/guest:latest@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef',
    'VM 7d9f2b1c-1111-4222-8333-0123456789ab is Running on rack1-7',
    '{"level":30,"time":1795000000000,"msg":"reconciled VM platform-default/mac-x7k2p"}',
    'berth_vms{phase="Running"} 3',
  ];
  for (const fact of facts) {
    expect(redactor.text(fact)).toBe(fact);
  }
  expect(JSON.stringify(redactor.texts(redactor.fields(OBJECTS[0])))).toMatch(
    /kept-uid.*kept-secret-name.*kept-key/,
  );
  expect(redactor.text('https://a:b@files.example/disk.img')).toBe(
    `https://${REMOVED}@files.example/disk.img`,
  );
});

it('keeps the values of labels that Berth, Helm or Kubernetes sets, and texts that repeat them', () => {
  const redactor = new Redactor();
  const pod = {
    metadata: {
      name: 'cache-x7k2p-9d4f1',
      labels: {
        'app.kubernetes.io/component': 'operator',
        'app.kubernetes.io/version': '1.10.0',
        'helm.sh/chart': 'berth-1.10.0',
        'batch.kubernetes.io/job-name': 'cache-x7k2p',
        'job-name': 'cache-x7k2p',
        'pod-template-hash': '5d8f7c9b6d',
        'berth.node-restriction.kubernetes.io/namespace': 'platform-ci2',
      },
      ownerReferences: [{ kind: 'Job', name: 'cache-x7k2p' }],
    },
    spec: { containers: [{ name: 'operator', image: 'registry.example/berth-operator:1.10.0' }] },
  };
  expect(redactor.texts(redactor.fields(pod))).toEqual(pod);
  const line = '{"msg":"the operator made a Job","job":"cache-x7k2p","namespace":"platform-ci2"}';
  expect(redactor.text(line)).toBe(line);
});

it('removes the rest of a private key from a log that begins within the key', () => {
  const log = 'short/rest/0f\nAQAB==\n-----END RSA PRIVATE KEY-----\nstarted\n';
  expect(new Redactor().text(log)).toBe(`${REMOVED}\nstarted\n`);
});

it('is fast for long lines without secrets, and ends for those that are made to be slow', () => {
  const redactor = new Redactor();
  for (const text of [
    'a'.repeat(200_000),
    'password:"'.repeat(20_000),
    '//a:'.repeat(50_000),
    '-----BEGIN '.repeat(20_000),
    '-'.repeat(200_000),
    'token'.repeat(40_000),
    `password="${'\\'.repeat(200_000)}`,
    `token:${' '.repeat(200_000)}[`,
    '!.'.repeat(100_000),
    'password="\\"'.repeat(20_000),
    Array.from({ length: 600 }, (_, level) => `password=${'\\'.repeat(level)}"`).join(''),
  ]) {
    const started = performance.now();
    redactor.text(text);
    expect(performance.now() - started).toBeLessThan(5_000);
  }
});

it('writes an archive that tar reads', () => {
  const content = Buffer.from('hello\n');
  const archive = tarOf(
    [
      { name: 'a/b.txt', content },
      { name: 'empty', content: Buffer.alloc(0) },
    ],
    1_795_000_000,
  );
  const list = execFileSync('tar', ['-tvf', '-'], { input: archive, encoding: 'utf8' });
  expect(list).toMatch(/^-rw------- .* 6 .* a\/b\.txt\n-rw------- .* 0 .* empty\n$/);
  expect(execFileSync('tar', ['-xOf', '-', 'a/b.txt'], { input: archive }).toString()).toBe('hello\n');
});
