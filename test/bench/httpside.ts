/** One side of the measurement of the HTTP API: the client's connections to the API server or to the HTTP API, with the same requests. */
import { Pool } from 'undici';
import { CREATED_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import type { Connection } from '../../kube/credentials.ts';
import { pathOf } from '../../kube/objects.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';

/** Connections of the client, one for each request at the same time. */
const CONNECTIONS = 8;
const IMAGE = 'registry.example/guest:latest';

/** Kind of the request: a list of VMs, or a deployment that is accepted. */
export type Work = 'list' | 'deploy';

/** Address of a side, and how it writes the same requests. */
export interface Door {
  readonly url: string;
  readonly authority: string;
  readonly list: (namespace: string) => string;
  readonly deploy: (namespace: string) => string;
  readonly body: object;
  readonly accepted: number;
}

export interface Places {
  readonly token: string;
  readonly listed: string;
  readonly deployed: string;
}

/** The object for the API server is the one that the HTTP API makes of its body. `owner` is the user of the token. */
export function apiServerDoor({ server, certificateAuthority = '' }: Connection, owner: string): Door {
  const path = (namespace: string) => pathOf(VMS, { namespace });
  return {
    url: server,
    authority: certificateAuthority,
    list: path,
    deploy: path,
    body: {
      apiVersion: VMS.apiVersion,
      kind: VMS.kind,
      metadata: { generateName: 'vm-', annotations: { [CREATED_BY_ANNOTATION]: owner } },
      spec: { image: IMAGE, cpu: 1, memory: '1024Mi' },
    },
    accepted: 201,
  };
}

export function serverDoor({ url, authority }: ServerProcess): Door {
  const path = (namespace: string) => `/api/v1/namespaces/${namespace}/vms`;
  return {
    url,
    authority,
    list: path,
    deploy: (namespace) => `${path(namespace)}?wait=false`,
    body: { image: IMAGE, cpu: 1, memory: 1 },
    accepted: 202,
  };
}

export class HTTPSide implements AsyncDisposable {
  readonly #pool: Pool;
  readonly #door: Door;
  readonly #places: Places;

  constructor(door: Door, places: Places) {
    this.#door = door;
    this.#places = places;
    // The HTTP API speaks HTTP/1.1 only, so the API server is asked the same way.
    this.#pool = new Pool(door.url, {
      connections: CONNECTIONS,
      allowH2: false,
      connect: { ca: door.authority },
    });
  }

  /** Sends one request and reads the whole answer. @throws Error with an answer that is no success. */
  async send(work: Work): Promise<void> {
    const { list, deploy, body, accepted } = this.#door;
    const { token, listed, deployed } = this.#places;
    const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
    const isList = work === 'list';
    const answer = await this.#pool.request({
      method: isList ? 'GET' : 'POST',
      path: isList ? list(listed) : deploy(deployed),
      headers,
      body: isList ? null : JSON.stringify(body),
    });
    const text = await answer.body.text();
    if (answer.statusCode !== (isList ? 200 : accepted)) {
      throw new Error(`HTTP ${answer.statusCode}: ${text.slice(0, 200)}`);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#pool.destroy();
  }
}
