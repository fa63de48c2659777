/** What is in the images, for scanners: the npm packages that the bundles are made of, and Node.js itself. */
import { run } from '../guest/run.ts';

/** npm reads package-lock.json and nothing else. */
const SBOM_TIMEOUT_MILLISECONDS = 60_000;

/** How npm marks what only development needs. */
const DEVELOPMENT = 'cdx:npm:package:development';

interface Component {
  'bom-ref': string;
  type: string;
  name: string;
  version: string;
  purl: string;
  properties?: { name: string }[];
}

interface CycloneDx {
  serialNumber?: string;
  metadata: { timestamp?: string; component: { name: string; type: string } };
  components: Component[];
  dependencies: { ref: string; dependsOn: string[] }[];
}

/**
 * CycloneDX as JSON, from package-lock.json in `root`. Debian's packages are not in it: the images keep their database,
 * which scanners read. The same input gives the same text.
 */
export async function billOfMaterials(root: string, nodeVersion: string): Promise<string> {
  // Not with --omit=dev: that leaves out, too, what both the programs and their tests need.
  const { stdout } = await run('npm', ['sbom', '--package-lock-only', '--sbom-format=cyclonedx'], {
    cwd: root,
    timeoutMilliseconds: SBOM_TIMEOUT_MILLISECONDS,
  });
  const { serialNumber: _, metadata, ...bill } = JSON.parse(stdout) as CycloneDx;
  const { timestamp: __, ...about } = metadata;
  const node = { 'bom-ref': `node@${nodeVersion}`, type: 'platform', name: 'node', version: nodeVersion };
  const components = [
    ...bill.components.filter(
      ({ properties }) => !properties?.some((property) => property.name === DEVELOPMENT),
    ),
    { ...node, purl: `pkg:generic/node@${nodeVersion}` },
  ];
  const present = new Set(components.map((component) => component['bom-ref']));
  const document = {
    ...bill,
    // npm names it after the folder of the checkout.
    metadata: { ...about, component: { ...about.component, name: 'berth', type: 'application' } },
    components,
    dependencies: bill.dependencies
      .filter(({ ref }) => present.has(ref) || ref.startsWith('berth@'))
      .map(({ ref, dependsOn }) => ({ ref, dependsOn: dependsOn.filter((name) => present.has(name)) })),
  };
  return `${JSON.stringify(document, undefined, 2)}\n`;
}
