/** Looks at pages in a browser: for people as pictures, and for screen readers by axe. */
import { join } from 'node:path';
import { AxeBuilder } from '@axe-core/playwright';
import type { Page } from 'playwright-core';

/** Folder of the pictures. People look at them after a change. */
const PICTURES = join(import.meta.dirname, '..', '..', 'dist', 'console-pictures');
/** Largest number of elements that a finding names. */
const ELEMENTS = 3;

/** Writes `dist/console-pictures/NAME.png`. */
export async function picture(page: Page, name: string): Promise<void> {
  await page.screenshot({ path: join(PICTURES, `${name}.png`) });
}

/** Returns what axe finds, with the first elements of each finding. */
export async function violations(page: Page): Promise<string[]> {
  const { violations: found } = await new AxeBuilder({ page }).analyze();
  return found.map(
    ({ id, nodes }) =>
      `${id}: ${nodes
        .slice(0, ELEMENTS)
        .map(({ html }) => html)
        .join(' ')}`,
  );
}
