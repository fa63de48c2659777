/** Chromium on the pages of one server: the console, and the page of the HTTP API. It needs Debian's package `chromium`. */
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core';

const PROGRAM = '/usr/bin/chromium';
const VIEWPORT = { width: 1440, height: 900 } as const;

export class ServerPages {
  /** Errors of the server's pages, and reports of the browser, for example about the content security policy. */
  readonly faults: string[] = [];
  readonly #browser: Browser;
  readonly #url: string;

  private constructor(browser: Browser, url: string) {
    this.#browser = browser;
    this.#url = url;
  }

  /** Starts the browser. `url` is the base address of the server. */
  static async launch(url: string): Promise<ServerPages> {
    // The sandbox does not work for root.
    const chromiumSandbox = process.getuid?.() !== 0;
    return new ServerPages(await chromium.launch({ executablePath: PROGRAM, chromiumSandbox }), url);
  }

  /** Opens a path of the server in a browser profile of its own. The certificates of tests and of the demo have an authority of their own. */
  async visit(path: string, options: BrowserContextOptions = {}): Promise<Page> {
    const context = await this.#browser.newContext({
      ignoreHTTPSErrors: true,
      viewport: VIEWPORT,
      ...options,
    });
    const page = await context.newPage();
    const note = (text: string) => {
      // Pages of others, for example of an identity provider, are not ours to judge.
      if (page.url().startsWith(this.#url)) {
        this.faults.push(text);
      }
    };
    page.on('pageerror', ({ message }) => note(message));
    page.on('console', (message) => message.type() === 'error' && note(message.text()));
    await page.goto(this.#url + path);
    return page;
  }

  /** Opens the console and signs in. `address` is the part of the address after the path of the console. */
  async openConsole(token: string, address = '', options: BrowserContextOptions = {}): Promise<Page> {
    const page = await this.visit(`/console/${address}`, options);
    await signIn(page, token);
    return page;
  }

  /** Ends the browser with all pages. */
  async close(): Promise<void> {
    await this.#browser.close();
  }
}

/** Signs in with a token, on a page of the console that asks for one. */
export async function signIn(page: Page, token: string): Promise<void> {
  await page.getByLabel('Token').fill(token);
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
}
