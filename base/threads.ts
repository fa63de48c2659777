/**
 * Sets the number of threads with which Node.js looks up names and works with files. A program imports this module before all others,
 * because Node.js reads the number only once, when it first needs such a thread.
 *
 * Node.js uses at most half of the threads for names. With its default of 4 threads, two names whose servers do not answer would delay all
 * other lookups, even the lookup of the API server. Users choose such names when they choose images, or servers of GitHub. 64 threads look
 * up 32 names at once. This is more than the machines and tasks of most hosts need, and idle threads cost almost nothing.
 */
process.env['UV_THREADPOOL_SIZE'] = '64';
