/** The console in Chromium on a large fleet of simulated hosts, with VMs that change, come and go all the time. */
import PQueue from 'p-queue';
import type { CDPSession, Page } from 'playwright-core';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { pause } from '../../base/time.ts';
import { ServerPages } from '../../hack/browser.ts';
import { bundle } from '../../hack/bundle.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { numbered, VMs } from '../fixtures/vms.ts';
import { accountToken } from '../support/members.ts';

/** Time limit in milliseconds until all VMs run on a busy machine. */
const FILL_MILLISECONDS = 900_000;
/** Number of VMs that are created at the same time. More of them would only fill the queue of the API server. */
const CREATORS = 8;
/** Time limit in milliseconds of a wait in the page. */
const PAGE_MILLISECONDS = 120_000;
/** Number of VMs that get a new label in each round, and of VMs that are replaced, and the pause between two rounds in milliseconds. */
const CHURN = { labelled: 10, replaced: 2, pauseMilliseconds: 500 } as const;

export interface LargeFleet {
  readonly hosts: number;
  readonly vms: number;
}

/** What the page did while VMs changed. */
export interface WatchedPage {
  /** Largest number of rows of tables and cards of hosts in the page. */
  readonly rows: number;
  /** Number of times that the page changed. */
  readonly renders: number;
  /** Times between two frames in milliseconds. */
  readonly frames: readonly number[];
}

export class LargeConsole implements AsyncDisposable {
  readonly #cluster: Cluster;
  readonly #vms: VMs;
  readonly #url: string;
  readonly #page: Page;
  readonly #devtools: CDPSession;
  readonly #end: () => Promise<void>;
  /** Names of the VMs, the oldest first. */
  readonly #names: string[];
  #round = 0;

  private constructor(
    cluster: Cluster,
    parts: {
      names: string[];
      url: string;
      page: Page;
      devtools: CDPSession;
      end: () => Promise<void>;
    },
  ) {
    this.#cluster = cluster;
    this.#vms = new VMs(cluster);
    ({ names: this.#names, url: this.#url, page: this.#page, devtools: this.#devtools } = parts);
    this.#end = parts.end;
  }

  /** Starts the fleet, and opens the console as an administrator once all VMs run. */
  static async start({ hosts, vms }: LargeFleet): Promise<LargeConsole> {
    await bundle();
    await using started = new AsyncDisposableStack();
    const name = `large-console-${process.pid}`;
    const cluster = await startCluster({ name, hosts });
    started.defer(async () => await cluster.stop());
    const operator = await cluster.startOperator({ bundle: true });
    const server = await cluster.startServer({ bundle: true });
    started.defer(async () => await server.process.stop());
    const pages = await ServerPages.launch(server.url);
    started.defer(async () => await pages.close());
    const fleet = new VMs(cluster);
    const names = numbered('vm', vms);
    const creations = names.map((each) => async () => await fleet.create(each));
    await new PQueue({ concurrency: CREATORS }).addAll(creations);
    const isFull = async () => (await fleet.names('Running')).length === vms;
    await Promise.race([
      waitFor('all VMs to run', isFull, {
        deadlineMilliseconds: FILL_MILLISECONDS,
        intervalMilliseconds: 2_000,
      }),
      // On a machine that is too busy, the operator loses its lease and ends.
      operator.stopped.then(() => Promise.reject(new Error(`the operator has ended: ${operator.logFile}`))),
    ]);
    const account = { namespace: fleet.namespace, name: 'lead' };
    const token = await accountToken(cluster, account, { role: 'cluster-admin', in: 'cluster' });
    const page = await pages.openConsole(token);
    const devtools = await page.context().newCDPSession(page);
    const parts = started.move();
    const end = async () => await parts.disposeAsync();
    return new LargeConsole(cluster, { names, url: server.url, page, devtools, end });
  }

  /** Goes to a part of the console, and waits until it shows hosts or VMs. */
  async show(address: string): Promise<void> {
    await this.#page.goto(`${this.#url}/console/${address}`);
    await this.#page.locator('tbody tr:not(.space), article').first().waitFor({ timeout: PAGE_MILLISECONDS });
  }

  /** Changes VMs for this time, and returns what the page did. If `scrolls` is true, its list scrolls in the meantime. */
  async watch(seconds: number, { scrolls }: { scrolls: boolean }): Promise<WatchedPage> {
    const watched = this.#page.evaluate<WatchedPage>(`(${WATCH_PAGE})(${seconds * 1_000}, ${scrolls})`);
    await this.churn(seconds);
    return await watched;
  }

  /** Changes VMs for this time. The number of VMs stays the same. */
  async churn(seconds: number): Promise<void> {
    for (const end = performance.now() + seconds * 1_000; performance.now() < end; ) {
      await this.#change();
      await pause(CHURN.pauseMilliseconds);
    }
  }

  async #change(): Promise<void> {
    this.#round += 1;
    const metadata = { labels: { round: String(this.#round) } };
    const created = numbered(`new-${this.#round}`, CHURN.replaced);
    const gone = this.#names.splice(0, CHURN.replaced);
    const first = (this.#round * CHURN.labelled) % (this.#names.length - CHURN.labelled);
    const labelled = this.#names.slice(first, first + CHURN.labelled);
    const client = this.#cluster.client();
    await Promise.all([
      ...gone.map(async (name) => await this.#vms.delete(name)),
      ...labelled.map(
        async (name) => await client.mergePatch(VMS, { namespace: this.#vms.namespace, name }, { metadata }),
      ),
      this.#vms.createMany(created),
    ]);
    this.#names.push(...created);
  }

  /** Returns the size in bytes of what the page has in the heap of JavaScript, without garbage. */
  async heap(): Promise<number> {
    await this.#devtools.send('HeapProfiler.collectGarbage');
    return (await this.#devtools.send('Runtime.getHeapUsage')).usedSize;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#end();
  }
}

/**
 * Runs in the page: counts rows, changes and frames, and scrolls the list if `scrolls` is true. A scroll changes the page, too. It is a text,
 * because programs of Node.js have no types of browsers.
 */
const WATCH_PAGE = `async (milliseconds, scrolls) => {
  const list = document.querySelector('.rows, .piers');
  const frames = [];
  const count = () => document.querySelectorAll('tbody tr:not(.space), article').length;
  let [renders, rows, last, step] = [0, count(), performance.now(), 120];
  const observer = new MutationObserver(() => {
    renders += 1;
    rows = Math.max(rows, count());
  });
  observer.observe(document.body, { childList: true, characterData: true, subtree: true });
  for (const end = last + milliseconds; last < end; ) {
    const now = await new Promise((resolve) => requestAnimationFrame(resolve));
    frames.push(now - last);
    last = now;
    if (scrolls && list !== null) {
      list.scrollTop += step;
      const isAtEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 1;
      step = isAtEnd ? -120 : list.scrollTop <= 0 ? 120 : step;
    }
  }
  observer.disconnect();
  return { rows, renders, frames };
}`;
