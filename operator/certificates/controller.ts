/** Approves or denies the certificate requests of hosts. The rules are in policy.ts. */
import { isHost } from '../tasks/placement.ts';
import { timestamp } from '../../base/time.ts';
import type { Logger } from 'pino';
import type { IndexFunctions } from '../../kube/cache.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { InvalidSigningRequestError, readSigningRequest } from '../../kube/certificates/request.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import {
  CERTIFICATE_SIGNING_REQUESTS,
  type CertificateSigningRequest,
  type Node,
  NODES,
  type Pod,
} from '../../kube/core.ts';
import { Consistency } from '../../kube/consistency.ts';
import { unlessMissing } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import type { HostApprovals } from '../host/approvals.ts';
import { PODS_BY_NODE } from '../host/observe.ts';
import type { HostRecords } from '../host/records.ts';
import {
  CLIENT_SIGNER,
  decide,
  decideServing,
  type CertificateDecision,
  type JoiningConfig,
  joiningOf,
  NODE_USER_PREFIX,
  nodeToKnow,
  type RequestContent,
  requesterOf,
  rivalOf,
  SERVING_SIGNER,
} from './policy.ts';
import { namesakesOf, readSurroundings } from './addresses.ts';

/**
 * Time in milliseconds after which a request is checked again if its requester has no Node. If the requester is a host, it creates its
 * missing Node within a second, so the next check finds this Node. If the requester is not a host, the checks end when the control plane
 * removes the request, within a day.
 */
const NODE_LOOK_MILLISECONDS = 10_000;
const REQUESTS_BY_USER = 'user';
/** Index of the certificate requests of joining hosts. The key is the name of the host for which the requester's credential is valid. */
const REQUESTS_BY_HOST = 'host';

/** Key under which the controller tracks all its changes. The next reconcile waits until the cache contains all these changes. */
const JUDGED = 'judged';
/**
 * Lifetime in seconds of a certificate if its request states no lifetime. It is the default of the flag --cluster-signing-duration of the
 * controller-manager.
 */
const SIGNERS_OWN_SECONDS = 365 * 24 * 3600;

export interface CertificateControllerOptions {
  readonly client: KubeClient;
  readonly requests: Informer<CertificateSigningRequest>;
  readonly approvals: HostApprovals;
  readonly hostRecords: HostRecords;
  /** All Nodes, including Nodes that are not hosts: see surroundings.ts. */
  readonly addresses: Informer<Node>;
  /** Pods of VMs, and Pods of Emulators. */
  readonly pods: Informer<Pod>;
  readonly emulatorPods: Informer<Pod>;
  readonly config: JoiningConfig;
  readonly clock: () => number;
}

/** Decision about a request, and the name of the Node on which the decision depends. */
interface Judgement {
  readonly decision: CertificateDecision;
  readonly name: string | undefined;
  /** Whether a host asks for its first certificate. */
  readonly isJoining: boolean;
}

export class CertificateReconciler {
  readonly #options: CertificateControllerOptions;
  readonly #consistency = new Consistency();

  constructor(options: CertificateControllerOptions) {
    this.#options = options;
  }

  /** Returns true when the caches show all decisions and all names that this controller wrote. */
  ready(): boolean {
    return this.#consistency.ready(JUDGED) && this.#options.approvals.ready();
  }

  async reconcile(name: string, { logger }: { logger: Logger }): Promise<Result> {
    const csr = this.#options.requests.cache.get(name);
    if (csr === undefined || !isOpen(csr, this.#options.config)) {
      return undefined;
    }
    const { decision, name: host, isJoining } = await this.#decide(csr);
    if (decision.kind === 'wait') {
      return { requeueAfterMilliseconds: NODE_LOOK_MILLISECONDS };
    }
    if (decision.kind === 'ignore') {
      return undefined;
    }
    logger.info(
      { request: name, by: csr.spec.username, decision: decision.kind, message: decision.message },
      'judged a certificate request',
    );
    if (decision.kind === 'approve' && host !== undefined && csr.spec.signerName === CLIENT_SIGNER) {
      // First the host's name is stored, then the certificate request is approved. In this order, a crash between the two steps cannot lose
      // the name of an approved host.
      const seconds = csr.spec.expirationSeconds ?? SIGNERS_OWN_SECONDS;
      if (isJoining) {
        // The host is new, perhaps another computer. So it gets nothing that an earlier host of its name had.
        await this.#options.hostRecords.keep(host, undefined);
      }
      await this.#options.approvals.remember(host, this.#options.clock() + seconds * 1000);
    }
    await this.#write(csr, decision);
    return undefined;
  }

  async #decide(csr: CertificateSigningRequest): Promise<Judgement> {
    const { addresses, client, config, requests, pods, emulatorPods } = this.#options;
    const requester = requesterOf(csr, config);
    if (requester === undefined) {
      return { decision: { kind: 'ignore' }, name: undefined, isJoining: false };
    }
    const request = readingOf(csr);
    const name = nodeToKnow(requester, request);
    // The Node is read from the API server, because the cache can lag. Without this read, the operator could miss the Node of an existing
    // host. It could then approve a certificate with this host's name for another computer.
    const node = name === undefined ? undefined : await unlessMissing(client.get(NODES, { name }));
    const others = requests.cache.byIndex(REQUESTS_BY_HOST, name ?? '');
    const rival = rivalOf(csr, others)?.metadata.name;
    const namesakes = namesakesOf(addresses, name ?? '');
    const holdsMachines = [pods, emulatorPods].some(
      ({ cache }) => cache.byIndex(PODS_BY_NODE, name ?? '').length > 0,
    );
    const decision = decide(requester, csr, request, { node, rival, namesakes, holdsMachines });
    return {
      decision:
        decision.kind === 'serving'
          ? decideServing(decision, await readSurroundings(this.#options))
          : decision,
      name,
      isJoining: requester.kind === 'joining',
    };
  }

  async #write(
    csr: CertificateSigningRequest,
    decision: Extract<CertificateDecision, { message: string }>,
  ): Promise<void> {
    const approved = decision.kind === 'approve';
    const condition = {
      type: approved ? 'Approved' : 'Denied',
      status: 'True' as const,
      reason: reasonFor(decision),
      message: decision.message,
      lastUpdateTime: timestamp(this.#options.clock()),
    };
    const judged = {
      ...csr,
      status: { ...csr.status, conditions: [...(csr.status?.conditions ?? []), condition] },
    };
    const { client, requests } = this.#options;
    const write = client.update(CERTIFICATE_SIGNING_REQUESTS, judged, { subresource: 'approval' });
    const written = await unlessMissing(write);
    if (written !== undefined) {
      this.#consistency.wrote(JUDGED, requests, written.metadata.resourceVersion ?? '');
    }
  }
}

function reasonFor(decision: Extract<CertificateDecision, { message: string }>): Reason {
  return decision.kind === 'approve' ? 'ApprovedByBerth' : decision.reason;
}

function isOpen(csr: CertificateSigningRequest, { hosts }: JoiningConfig): boolean {
  const isNodes = [CLIENT_SIGNER, SERVING_SIGNER, hosts.servingSigner].includes(csr.spec.signerName);
  const isJudged =
    csr.status?.conditions?.some(({ type }) => type === 'Approved' || type === 'Denied') ?? false;
  return isNodes && !isJudged;
}

function readingOf({ spec }: CertificateSigningRequest): RequestContent {
  try {
    return readSigningRequest(Buffer.from(spec.request, 'base64').toString('latin1'));
  } catch (error) {
    // Every parse error is a mistake in the request. The function returns the error instead of throwing it, so that the operator denies the
    // request immediately and does not delay other requests.
    return error instanceof InvalidSigningRequestError
      ? error
      : new InvalidSigningRequestError(String(error));
  }
}

export function requestIndexes(config: JoiningConfig): IndexFunctions<CertificateSigningRequest> {
  return {
    [REQUESTS_BY_USER]: ({ spec: { username = '' } }) => [username],
    [REQUESTS_BY_HOST]: (csr) => {
      const host = joiningOf(csr, config)?.host;
      return typeof host === 'string' ? [host] : [];
    },
  };
}

interface RequestWatches {
  readonly requests: Informer<CertificateSigningRequest>;
  readonly nodes: Informer<Node>;
}

/** Enqueues a request when it changes. Enqueues all requests of a Node when the Node becomes a host. */
export function enqueueRequests(controller: Controller, { requests, nodes }: RequestWatches): void {
  requests.cache.onChange(({ object }) => controller.enqueue(object.metadata.name));
  // The operator ignores the requests of a Node that is not marked as a host. Therefore these requests are enqueued again when the Node is
  // marked.
  nodes.cache.onChange(({ object, previous }) => {
    if (isHost(object) && !isHost(previous)) {
      const { name } = object.metadata;
      const asked = [
        ...requests.cache.byIndex(REQUESTS_BY_USER, `${NODE_USER_PREFIX}${name}`),
        ...requests.cache.byIndex(REQUESTS_BY_HOST, name),
      ];
      asked.forEach(({ metadata }) => controller.enqueue(metadata.name));
    }
  });
}
