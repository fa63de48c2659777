/** Reads the body of an upload: texts first, then the file as a stream. The file is never completely in memory. */
import type { Readable } from 'node:stream';
import type { Multipart } from '@fastify/multipart';
import type { FastifyRequest } from 'fastify';
import * as z from 'zod';
import { isObjectName } from '../../api/v1alpha1/names.ts';
import { objectName, sha256 } from '../../api/v1alpha1/schema.ts';
import { descriptionSchema } from '../../api/v1alpha1/source.ts';
import { architectureSchema } from '../../api/v1alpha1/template.ts';
import { codeOf, messageOf } from '../../base/errors.ts';
import { IMAGE_DIALECT } from '../dialect/fields.ts';
import { normalizeBody, translateBody } from '../http/bodies.ts';
import { invalidField, StatusError } from '../http/errors.ts';

/** Largest body in bytes: 1 TiB. Files that hosts fetch from web servers have the same limit. */
const BODY_BYTES = 1024 ** 4;
/** Limits of a body, which has some short texts and one file. */
export const UPLOAD_LIMITS = {
  fileSize: BODY_BYTES,
  fieldSize: 16 * 1024,
  files: 1,
  fields: 16,
  parts: 17,
  headerPairs: 32,
};
/**
 * Time in milliseconds in which the next piece of the file must arrive. It is shorter than the minute after which the host ends the
 * transfer. Therefore the server ends the transfer first, and can tell the client the reason.
 */
const SILENCE_MILLISECONDS = 50_000;
/** An answer shows at most this number of characters from the name of a part of the body. */
const NAME_LENGTH = 100;
/** Endings of file names. They are removed if the name of the object is made from the file name. */
const ENDING = /\.(?:qcow2|img|raw|iso)$/i;

/** Text fields of an upload form. In the body of the request, they must come before the file. */
export const uploadTextsSchema = z.object({
  imageName: objectName(
    'Name of the new object. The default is the name of the file without its ending.',
  ).optional(),
  description: descriptionSchema.optional(),
  type: architectureSchema.optional(),
  sha256: sha256('SHA-256 of the file, in lower-case hexadecimal.').optional(),
});
const KEYS: ReadonlySet<string> = new Set(
  Object.keys(uploadTextsSchema.shape).map((key) => key.toLowerCase()),
);

export interface UploadForm {
  readonly name: string;
  readonly description: string | undefined;
  readonly architecture: z.infer<typeof architectureSchema> | undefined;
  readonly sha256: string | undefined;
  /** Stream of the file. It ends with an error if the body is not complete. */
  readonly file: AsyncIterable<Buffer>;
}

/**
 * Returns the length of the body in bytes. @throws StatusError 411 when the header Content-Length is absent, 413 when the body is too
 * large, 415 when it is not multipart.
 */
export function lengthOf(request: FastifyRequest): number {
  if (!request.isMultipart()) {
    throw new StatusError(415, 'the body must be multipart/form-data');
  }
  const length = Number(request.headers['content-length'] ?? Number.NaN);
  if (Number.isNaN(length)) {
    throw new StatusError(
      411,
      'The header Content-Length is required, because the host reserves space of this size',
    );
  }
  if (length > BODY_BYTES) {
    throw new StatusError(413, `The body is larger than ${BODY_BYTES} bytes`);
  }
  return length;
}

/**
 * Reads the body up to the beginning of its file. The iterable `file` of the result yields the file. Then it also reads the rest of the
 * body, to refuse a text after the file.
 *
 * @throws StatusError when a text is not valid, or when there is no file.
 */
export async function readForm(request: FastifyRequest): Promise<UploadForm> {
  const texts: Record<string, unknown> = {};
  const parts = new Parts(request);
  for (;;) {
    const part = await parts.next();
    if (part === undefined) {
      throw invalidField('file', 'is required');
    }
    if (part.type === 'file') {
      return { ...formOf(texts, part.filename), file: readChunks(part.file, parts) };
    }
    if (Object.hasOwn(texts, part.fieldname)) {
      throw invalidField(part.fieldname, 'is given more than once');
    }
    texts[part.fieldname] = part.value;
  }
}

/**
 * Reads the parts of a body. By default, the multipart library drops a part that it cannot read, and continues. This class throws an error
 * with the name of the part instead.
 */
class Parts {
  readonly #parts: AsyncIterator<Multipart>;
  /** Names of all parts whose headers were read, in the order of the parts. */
  readonly #names: string[] = [];
  #passed = 0;

  constructor(request: FastifyRequest) {
    this.#parts = request.parts({
      isPartAFile: (name = '', type, fileName) => {
        this.#names.push(name);
        return type === 'application/octet-stream' || fileName !== undefined;
      },
    });
  }

  /**
   * Returns the next part, or undefined after the last part.
   *
   * @throws StatusError 400 when the body is not valid, 408 when no data arrives for too long, 413 when a limit is exceeded, and 422 when a
   * part cannot be read.
   */
  async next(): Promise<Multipart | undefined> {
    const { value, done } = await this.#read();
    const part = done === true ? undefined : value;
    const name = this.#names[this.#passed];
    if (name !== part?.fieldname) {
      throw unreadable(name);
    }
    this.#passed += 1;
    return part;
  }

  async #read(): Promise<IteratorResult<Multipart>> {
    try {
      return await arriving(this.#parts.next());
    } catch (error) {
      // The library reports a dropped part only at the end of the body, with one of these codes.
      throw /JSON|PROTO/.test(codeOf(error) ?? '')
        ? unreadable(this.#names[this.#passed])
        : refusalFor(error);
    }
  }
}

function unreadable(name = ''): StatusError {
  return invalidField(name.slice(0, NAME_LENGTH), 'cannot be read. Send a text or valid JSON');
}

/**
 * Waits for the next data of the body. @throws StatusError 408 when no data arrives for too long, or the error of `next` when it rejects.
 */
async function arriving<T>(next: Promise<T>): Promise<T> {
  const { promise: late, reject } = Promise.withResolvers<never>();
  const message = `No data of the upload arrived for ${SILENCE_MILLISECONDS / 1000} seconds`;
  const timer = setTimeout(() => reject(new StatusError(408, message)), SILENCE_MILLISECONDS);
  try {
    return await Promise.race([next, late]);
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Yields the pieces of the file, and then reads the rest of the body.
 *
 * @throws StatusError 400 when the body ends before the file is complete, 408 when the client pauses too long, and 422 when a text follows
 * the file.
 */
async function* readChunks(file: Readable, parts: Parts): AsyncGenerator<Buffer> {
  const chunks = file[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  try {
    for (;;) {
      const { value, done } = await arriving(chunks.next());
      if (done === true) {
        break;
      }
      yield value;
    }
  } catch (error) {
    throw refusalFor(error);
  } finally {
    file.destroy();
  }
  for (let part = await parts.next(); part !== undefined; part = await parts.next()) {
    const { fieldname } = part;
    const text = translateBody({ [fieldname]: true }, IMAGE_DIALECT).body as object;
    if (Object.keys(text).some((key) => KEYS.has(key.toLowerCase()))) {
      throw invalidField(fieldname, 'must come before the file');
    }
    normalizeBody(uploadTextsSchema, text);
  }
}

/**
 * Returns the refusal for an error. The multipart library's errors about exceeded limits have a status code. An error without a status code
 * gets the code 400.
 */
function refusalFor(error: unknown): Error {
  if (error instanceof StatusError) {
    return error;
  }
  return error instanceof Error && 'statusCode' in error
    ? new StatusError(Number(error.statusCode), error.message)
    : new StatusError(400, `the body is not valid: ${messageOf(error)}`);
}

/**
 * Checks the texts of the upload. `filename` is empty if the client sent no file name. This is possible, because a part with the type
 * `application/octet-stream` counts as a file even without a file name.
 */
function formOf(texts: Record<string, unknown>, filename = ''): Omit<UploadForm, 'file'> {
  const { body } = translateBody(texts, IMAGE_DIALECT);
  const { data, error } = uploadTextsSchema.safeParse(normalizeBody(uploadTextsSchema, body));
  if (data === undefined) {
    const [issue] = error.issues;
    throw invalidField(String(issue?.path[0]), issue?.message ?? 'is not valid');
  }
  const { imageName, description, type: architecture, sha256: digest } = data;
  const name = imageName ?? filename.replace(ENDING, '');
  if (!isObjectName(name)) {
    throw invalidField('imageName', 'must be the name of the new object, and must come before the file');
  }
  return { name, description, architecture, sha256: digest };
}
