/** Typed calls that read and write Kubernetes objects. */
import type { Answer, Method, Request, Transport } from './transport.ts';
import { apiErrorFrom, FencedError, isGone, isNotFound, unlessMissing } from './errors.ts';
import { type KubeObject, pathOf, type Ref, type Resource, type Unsaved } from './objects.ts';

/**
 * Signal that never aborts. A request with this signal continues although the signal of its client has aborted. Use it for requests whose
 * result must be known, and for requests that undo a change.
 */
export const UNINTERRUPTED: AbortSignal = new AbortController().signal;

/** Number of objects in a page. client-go's pager has the same number. A page of typical objects has about 2 MB of JSON. */
const PAGE_SIZE = 500;
/** Form in which the API server sends only the metadata of the objects of a list. */
const METADATA_LIST = 'application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1';

export interface CallOptions {
  signal?: AbortSignal | undefined;
  deadlineMilliseconds?: number | undefined;
}

export interface ListOptions extends CallOptions {
  namespace?: string | undefined;
  labelSelector?: string | undefined;
  fieldSelector?: string | undefined;
  /** True to receive only the metadata, so that the content of Secrets stays on the server. */
  metadataOnly?: boolean | undefined;
}

export interface List<T> {
  items: T[];
  resourceVersion: string;
}

export interface WriteOptions extends CallOptions {
  fieldManager?: string | undefined;
  subresource?: string | undefined;
}

export interface CreateOptions extends Omit<WriteOptions, 'subresource'> {
  /** If this is `Strict`, the API server refuses an object with unknown fields. Otherwise it drops these fields. */
  fieldValidation?: 'Strict' | undefined;
  /** If this is true, the API server checks the object and stores nothing. */
  dryRun?: boolean;
}

export interface ApplyOptions extends WriteOptions {
  fieldManager: string;
  /** Whether the apply takes ownership of fields that other managers own. */
  force?: boolean;
}

export interface DeleteOptions extends CallOptions {
  /** Preconditions of the deletion. If the object has another uid or resourceVersion, the server answers with 409. */
  uid?: string | undefined;
  resourceVersion?: string | undefined;
  gracePeriodSeconds?: number | undefined;
  propagationPolicy?: 'Background' | 'Foreground' | 'Orphan' | undefined;
}

type Query = Record<string, string | number | boolean | undefined>;

/**
 * Client with typed calls for Kubernetes objects. Every call that creates or changes an object resolves with the object as the server
 * stored it, without `managedFields`. A call rejects with an ApiError when the server refuses, and with a DeadlineError when the server
 * does not answer.
 */
export class KubeClient {
  readonly transport: Transport;
  /**
   * Function that is called just before each request that changes an object. If the function returns false, the request is not sent, and
   * the call rejects with a FencedError. A process sets this function if only the leader is allowed to change objects. If the operating
   * system suspends the leader for a long time, its lease expires. Without this function, the former leader would still change objects when
   * it continues. The function must only check the local clock, because every request that changes an object waits for the function.
   */
  guard: (() => boolean) | undefined;
  /** Signal for the requests whose callers give no signal. */
  readonly #signal: AbortSignal | undefined;

  constructor(transport: Transport, { signal }: Pick<CallOptions, 'signal'> = {}) {
    this.transport = transport;
    this.#signal = signal;
  }

  async get<T extends KubeObject>(type: Resource<T>, ref: Ref, options: CallOptions = {}): Promise<T> {
    return await this.#object<T>('GET', pathOf(type, ref), options);
  }

  /** Reads all objects, in pages. */
  async list<T extends KubeObject>(type: Resource<T>, options: ListOptions = {}): Promise<List<T>> {
    const items: T[] = [];
    let resourceVersion = '';
    try {
      for await (const page of this.pages(type, options)) {
        resourceVersion = page.resourceVersion;
        items.push(...page.items);
      }
    } catch (error) {
      if (!isGone(error)) {
        throw error;
      }
      // The server compacted the resourceVersion of the pages before the last page was read. Therefore all objects are read again in one
      // single request, which cannot fail in this way.
      return await this.#page<T>(type, options, undefined);
    }
    return { items, resourceVersion };
  }

  /** Reads all objects in pages of 500 at one resourceVersion. @throws ApiError 410 when the server has compacted this version. */
  async *pages<T extends KubeObject>(type: Resource<T>, options: ListOptions = {}): AsyncGenerator<List<T>> {
    let position = '';
    do {
      const page = await this.#page<T>(type, options, { limit: PAGE_SIZE, continue: position || undefined });
      yield page;
      position = page.continue;
    } while (position !== '');
  }

  /** Creates an object by POST. With `generateName`, the server chooses the name. */
  async create<T extends KubeObject>(
    type: Resource<T>,
    object: Unsaved<T>,
    { fieldValidation, dryRun = false, ...options }: CreateOptions = {},
  ): Promise<T> {
    const body = { ...object, apiVersion: type.apiVersion, kind: type.kind };
    const path = pathOf(type, namespaceOf(object.metadata));
    const { fieldManager } = options;
    return await this.#object<T>(
      'POST',
      path + query({ fieldManager, fieldValidation, dryRun: dryRun ? 'All' : undefined }),
      {
        ...options,
        body,
      },
    );
  }

  /**
   * Sends a server-side apply. `object.metadata` contains a name and, for a namespaced type, a namespace. If the object does not exist and
   * `object.metadata` has no uid, the server creates the object.
   */
  async apply<T extends KubeObject>(type: Resource<T>, object: object, options: ApplyOptions): Promise<T> {
    const { metadata } = object as { metadata: Ref };
    const path = pathOf(type, metadata, options.subresource);
    return await this.#object<T>(
      'PATCH',
      path + query({ fieldManager: options.fieldManager, force: options.force }),
      {
        ...options,
        body: { ...object, apiVersion: type.apiVersion, kind: type.kind },
        contentType: 'application/apply-patch+yaml',
      },
    );
  }

  /** Sends a JSON merge patch: null removes a field, and a list replaces the whole list. */
  async mergePatch<T extends KubeObject>(
    type: Resource<T>,
    ref: Ref,
    patch: object,
    options: WriteOptions = {},
  ): Promise<T> {
    const path = pathOf(type, ref, options.subresource);
    return await this.#object<T>('PATCH', path + query({ fieldManager: options.fieldManager }), {
      ...options,
      body: patch,
      contentType: 'application/merge-patch+json',
    });
  }

  /**
   * Replaces an object by PUT. If the resourceVersion in `object.metadata` differs from that of the stored object, the server answers with
   * 409.
   */
  async update<T extends KubeObject>(type: Resource<T>, object: T, options: WriteOptions = {}): Promise<T> {
    const path = pathOf(type, object.metadata, options.subresource);
    return await this.#object<T>('PUT', path + query({ fieldManager: options.fieldManager }), {
      ...options,
      body: object,
    });
  }

  /**
   * Deletes an object. If the object does not exist, the call succeeds. If its uid or resourceVersion differs from the value in `options`,
   * the server answers with 409.
   */
  async delete<T extends KubeObject>(
    type: Resource<T>,
    ref: Ref,
    options: DeleteOptions = {},
  ): Promise<void> {
    const { uid, resourceVersion, gracePeriodSeconds, propagationPolicy } = options;
    const body = {
      apiVersion: 'v1',
      kind: 'DeleteOptions',
      gracePeriodSeconds,
      propagationPolicy,
      preconditions:
        uid === undefined && resourceVersion === undefined ? undefined : { uid, resourceVersion },
    };
    try {
      await this.call('DELETE', pathOf(type, ref), { ...options, body });
    } catch (error) {
      if (!isNotFound(error)) {
        throw error;
      }
    }
  }

  /** Sends any request and returns the server's answer. */
  async call(method: Method, path: string, options: Omit<Request, 'method' | 'path'> = {}): Promise<Answer> {
    const answer = await this.raw(method, path, options);
    if (answer.status >= 400) {
      throw apiErrorFrom(answer.body, answer.status, answer.retryAfterMilliseconds);
    }
    return answer;
  }

  /** Does the same as {@link call}, but also returns an answer whose status is an error. */
  async raw(method: Method, path: string, options: Omit<Request, 'method' | 'path'> = {}): Promise<Answer> {
    return await this.transport.request({
      ...options,
      signal: options.signal ?? this.#signal,
      method,
      path,
      beforeSend: method === 'GET' ? undefined : () => this.#checkGuard(),
    });
  }

  async #page<T extends KubeObject>(
    type: Resource<T>,
    options: ListOptions,
    position: { limit: number; continue: string | undefined } | undefined,
  ): Promise<List<T> & { continue: string }> {
    const { namespace, labelSelector, fieldSelector, metadataOnly, ...request } = options;
    const path = pathOf(type, namespaceOf({ namespace }));
    const accept = metadataOnly === true ? METADATA_LIST : undefined;
    const selected = path + query({ labelSelector, fieldSelector, ...position });
    const answer = await this.call('GET', selected, { ...request, accept });
    const list = answer.body as {
      items: T[] | null;
      metadata: { resourceVersion: string; continue?: string };
    };
    const items = list.items ?? [];
    for (const item of items) {
      // The items of a list have neither apiVersion nor kind, so both are added here.
      item.apiVersion = type.apiVersion;
      item.kind = type.kind;
    }
    return { items, resourceVersion: list.metadata.resourceVersion, continue: list.metadata.continue ?? '' };
  }

  async #object<T extends KubeObject>(
    method: Method,
    path: string,
    options: Omit<Request, 'method' | 'path'>,
  ): Promise<T> {
    return (await this.call(method, path, options)).body as T;
  }

  #checkGuard(): void {
    if (this.guard?.() === false) {
      throw new FencedError(
        'a request that changes an object was not sent, because this process no longer holds the lease',
      );
    }
  }
}

function namespaceOf(metadata: { namespace?: string | undefined }): { namespace?: string } {
  return metadata.namespace === undefined ? {} : { namespace: metadata.namespace };
}

/** Returns the query of a URL, for example `?a=b&c=d`. Undefined parameters are left out. Without parameters, the result is empty. */
export function query(parameters: Query): string {
  const defined = Object.entries(parameters).filter(([, value]) => value !== undefined);
  const text = defined.map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`).join('&');
  return text === '' ? '' : `?${text}`;
}

/**
 * Deletes an object that must exist. {@link KubeClient.delete} succeeds for a missing object. If `dryRun` is true, the server only checks
 * whether the deletion is possible.
 *
 * @throws ApiError when the API server refuses. The status is 404 if the object does not exist.
 */
export async function deleteExisting<T extends KubeObject>(
  client: KubeClient,
  type: Resource<T>,
  ref: Ref,
  { dryRun = false } = {},
): Promise<void> {
  await client.call('DELETE', pathOf(type, ref) + query({ dryRun: dryRun ? 'All' : undefined }));
}

/** Request that is under way. */
interface Reading {
  /** Resolves when the request has ended or failed. It never rejects. */
  readonly ended: Promise<void>;
  /** Result of the next request, for the callers that came during this request. */
  next?: Promise<KubeObject | undefined>;
}

/**
 * Sends read requests, and shares their results between callers. A caller never gets a result that is older than its call: if a request is
 * under way, the caller waits for the next request. Therefore many callers cause at most one request at a time for each object. A caller
 * waits for two requests at most.
 */
export class SharedReads {
  readonly #client: Pick<KubeClient, 'get'>;
  readonly #underWay = new Map<string, Reading>();

  constructor(client: Pick<KubeClient, 'get'>) {
    this.#client = client;
  }

  /**
   * Returns the object as it is stored now, or undefined if it does not exist. Other callers get the same object, so callers must not change
   * it.
   *
   * @throws ApiError or DeadlineError of the request
   */
  async get<T extends KubeObject>(type: Resource<T>, ref: Ref): Promise<T | undefined> {
    const path = pathOf(type, ref);
    const reading = this.#underWay.get(path);
    if (reading === undefined) {
      return await this.#begin(path, type, ref);
    }
    reading.next ??= reading.ended.then(async () => await this.#begin(path, type, ref));
    return (await reading.next) as T | undefined;
  }

  #begin<T extends KubeObject>(path: string, type: Resource<T>, ref: Ref): Promise<T | undefined> {
    const result = unlessMissing(this.#client.get(type, ref));
    const end = () => {
      if (reading.next === undefined) {
        this.#underWay.delete(path);
      }
    };
    const reading: Reading = { ended: result.then(end, end) };
    this.#underWay.set(path, reading);
    return result;
  }
}
