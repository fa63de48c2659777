/** Lists the content of the images for scanners: the npm packages in the bundles, and Node.js itself. */
import { run } from '../guest/run.ts';

/** Time limit of `npm sbom`, which reads only package-lock.json. */
const SBOM_TIMEOUT_MILLISECONDS = 60_000;

/** Property with which npm marks packages that only development needs. */
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
 * Returns the list as CycloneDX JSON, from package-lock.json in `root`. It does not contain Debian's packages, because scanners
 * read them from the packages' database in the images. The same input gives the same text.
 */
export async function billOfMaterials(root: string, nodeVersion: string): Promise<string> {
  // The option --omit=dev is not used. It would also leave out packages that both the programs and their tests need.
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
    // npm would use the name of the checkout's folder.
    metadata: { ...about, component: { ...about.component, name: 'berth', type: 'application' } },
    components,
    dependencies: bill.dependencies
      .filter(({ ref }) => present.has(ref) || ref.startsWith('berth@'))
      .map(({ ref, dependsOn }) => ({ ref, dependsOn: dependsOn.filter((name) => present.has(name)) })),
  };
  return `${JSON.stringify(document, undefined, 2)}\n`;
}
