/** What is in the images, for scanners: the npm packages that the bundles are made of, and Node.js itself. */
import { run } from '../guest/run.ts';

/** npm reads package-lock.json and nothing else. */
const SBOM_TIMEOUT_MILLISECONDS = 60_000;

interface CycloneDx {
  serialNumber?: string;
  metadata: { timestamp?: string; component: { name: string; type: string } };
  components: { 'bom-ref': string; type: string; name: string; version: string; purl: string }[];
}

/**
 * CycloneDX as JSON, from package-lock.json in `root`. Debian's packages are not in it: the images keep their database,
 * which scanners read. The same input gives the same text.
 */
export async function billOfMaterials(root: string, nodeVersion: string): Promise<string> {
  const { stdout } = await run(
    'npm',
    ['sbom', '--omit=dev', '--package-lock-only', '--sbom-format=cyclonedx'],
    { cwd: root, timeoutMilliseconds: SBOM_TIMEOUT_MILLISECONDS },
  );
  const bill = JSON.parse(stdout) as CycloneDx;
  delete bill.serialNumber;
  delete bill.metadata.timestamp;
  // npm names it after the folder of the checkout.
  bill.metadata.component.name = 'berth';
  bill.metadata.component.type = 'application';
  bill.components.push({
    'bom-ref': `node@${nodeVersion}`,
    type: 'platform',
    name: 'node',
    version: nodeVersion,
    purl: `pkg:generic/node@${nodeVersion}`,
  });
  return `${JSON.stringify(bill, undefined, 2)}\n`;
}
