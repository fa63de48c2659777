import { PassThrough, type Readable } from 'node:stream';
import multipart from '@fastify/multipart';
import { pino } from 'pino';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { type App, createApp } from '../http/app.ts';
import { lengthOf, readForm, UPLOAD_LIMITS } from './uploadform.ts';

let app: App;

beforeAll(async () => {
  app = createApp({ logger: pino({ level: 'silent' }), tls: false });
  await app.register(multipart, { limits: UPLOAD_LIMITS });
  app.post('/', async (request) => {
    lengthOf(request);
    const { file, ...form } = await readForm(request);
    let content = '';
    for await (const chunk of file) {
      content += chunk.toString();
    }
    return { ...form, content };
  });
  await app.ready();
});

afterAll(async () => await app.close());

interface Part {
  readonly name: string;
  readonly filename?: string;
  readonly type?: string;
  readonly value: string;
}

const BOUNDARY = 'boundary';

function bodyOf(...parts: Part[]): string {
  const texts = parts.map(({ name, filename, type, value }) => {
    const file = filename === undefined ? '' : `; filename="${filename}"`;
    const header = type === undefined ? '' : `\r\nContent-Type: ${type}`;
    return `--${BOUNDARY}\r\nContent-Disposition: form-data; name="${name}"${file}${header}\r\n\r\n${value}\r\n`;
  });
  return `${texts.join('')}--${BOUNDARY}--\r\n`;
}

async function send(payload: string | Readable, headers: Record<string, string> = {}) {
  const type = `multipart/form-data; boundary=${BOUNDARY}`;
  const answer = await app.inject({
    method: 'POST',
    url: '/',
    payload,
    headers: { 'content-type': type, ...headers },
  });
  return { status: answer.statusCode, body: answer.json<Record<string, unknown>>() };
}

const NAME = { name: 'imageName', value: 'desktop' };
const JSON_TYPE = 'application/json';
/** Limit of a wait. The default, 1 s, is too short on a busy machine. */
const WAIT = { timeout: 30_000 };
const FILE = { name: 'anything', filename: 'Disk.QCOW2', value: 'content' };

it('has its texts before the file, whatever the case of their keys', async () => {
  const sha256 = 'a'.repeat(64);
  const { status, body } = await send(
    bodyOf(
      { name: 'ImageName', value: 'desktop' },
      { name: 'description', value: '' },
      { name: 'TYPE', value: 'arm64' },
      { name: 'sha256', value: sha256 },
      FILE,
    ),
  );
  expect([status, body]).toEqual([
    200,
    { name: 'desktop', architecture: 'arm64', sha256, content: 'content' },
  ]);
});

it('takes the name under the key of other clients, before the file only', async () => {
  expect((await send(bodyOf({ name: 'Name', value: 'desktop' }, FILE))).body).toMatchObject({
    name: 'desktop',
  });
  const late = await send(bodyOf(NAME, FILE, { name: 'name', value: 'late' }));
  expect(late.body['message']).toBe('name: must come before the file');
});

it('takes the name from the file when no text has it', async () => {
  const { body } = await send(bodyOf({ ...FILE, filename: 'desktop-15.iso' }));
  expect(body).toMatchObject({ name: 'desktop-15' });
});

/** A part that is a file because of its type, although it has no file name. */
const NAMELESS = `--${BOUNDARY}\r\nContent-Disposition: form-data; name="f"\r\nContent-Type: application/octet-stream\r\n\r\nx\r\n--${BOUNDARY}--\r\n`;

it.each([
  ['a file without any name', NAMELESS, 'imageName'],
  ['a name that no object can have', bodyOf(FILE), 'imageName'],
  ['a text that no object can have as its name', bodyOf({ ...NAME, value: '../a' }, FILE), 'imageName'],
  ['no file', bodyOf({ name: 'imageName', value: 'desktop' }), 'file'],
  ['an unknown architecture', bodyOf({ name: 'type', value: 'x86' }, FILE), 'type'],
  ['a digest that is none', bodyOf({ name: 'sha256', value: 'A' }, FILE), 'sha256'],
  ['a text after the file', bodyOf(NAME, FILE, { name: 'SHA256', value: 'a'.repeat(64) }), 'SHA256'],
  ['JSON that is none', bodyOf(NAME, { name: 'sha256', type: JSON_TYPE, value: '"a' }, FILE), 'sha256'],
  ['such JSON after the file', bodyOf(NAME, FILE, { name: 'more', type: JSON_TYPE, value: '{' }), 'more'],
  ['an unknown text', bodyOf(NAME, { name: 'arch', value: 'arm64' }, FILE), 'arch'],
  ['an unknown text after the file', bodyOf(NAME, FILE, { name: 'arch', value: 'arm64' }), 'arch'],
  ['a text twice', bodyOf(NAME, NAME, FILE), 'imageName'],
  ['two names', bodyOf(NAME, { name: 'name', value: 'other' }, FILE), 'imageName'],
  ['a name of each object', bodyOf({ name: 'constructor', value: 'a' }, NAME, FILE), 'constructor'],
])('with %s is 422 and names the field', async (_name, payload, field) => {
  const { status, body } = await send(payload);
  expect([status, body['details']]).toEqual([
    422,
    { causes: [expect.objectContaining({ field }) as unknown] },
  ]);
});

it('takes texts as JSON', async () => {
  const name = { ...NAME, type: JSON_TYPE, value: '"desktop"' };
  const { status, body } = await send(bodyOf(name, FILE));
  expect([status, body]).toEqual([200, { name: 'desktop', content: 'content' }]);
});

it('whose sender pauses in the file is 408', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  try {
    const payload = new PassThrough();
    payload.write(bodyOf(NAME, FILE).slice(0, -20));
    const answer = send(payload, { 'content-length': '1000' });
    await vi.waitFor(() => expect(vi.getTimerCount()).toBeGreaterThan(0), WAIT);
    await vi.advanceTimersByTimeAsync(49_000);
    payload.write('more');
    await vi.advanceTimersByTimeAsync(49_000);
    await vi.advanceTimersByTimeAsync(2_000);
    const { status, body } = await answer;
    expect([status, body['message']]).toEqual([408, expect.stringMatching(/arrived for 50 seconds/)]);
  } finally {
    vi.useRealTimers();
  }
});

it('without the end of its body never ends like a whole file', async () => {
  const whole = bodyOf({ name: 'imageName', value: 'desktop' }, FILE);
  const { status, body } = await send(whole.slice(0, -20));
  expect(status).toBe(400);
  expect(body['content']).toBeUndefined();
});

it.each([
  ['of another type', '{}', { 'content-type': 'application/json' }, 415],
  ['that is too large', bodyOf(FILE), { 'content-length': String(1024 ** 4 + 1) }, 413],
  [
    'of many texts',
    bodyOf(...Array.from({ length: 20 }, (_, at) => ({ name: `n${at}`, value: '' })), FILE),
    {},
    413,
  ],
])('%s is refused', async (_name, payload, headers, status) => {
  expect((await send(payload, headers)).status).toBe(status);
});
