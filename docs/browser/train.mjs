// Trains one model in a worker of its own, on stock onnxruntime-web, and says what it measures.
//
// A worker has a WebAssembly heap of its own. The heap grows and never shrinks, so its size is the most that was
// needed so far. With `cap`, the memory is created with that maximum: what does not fit fails, as it would on a
// device that has no more.
//
// In: { ort, model, inputs, provider, cap, steps, rate, profile, options }, sizes in MiB.
// Out: { kind: "ready" | "step" | "compared" | "done" | "failed", ... }.

const MIB = 2 ** 20;
const PAGES = 16; // of WebAssembly, in a MiB

let heap = null; // onnxruntime-web's WebAssembly.Memory
const gpu = { live: 0, peak: 0, refused: "" }; // bytes of the buffers of WebGPU

function watchHeap(cap) {
  const Plain = WebAssembly.Memory;
  WebAssembly.Memory = class extends Plain {
    constructor(limits) {
      super(cap ? { ...limits, maximum: Math.min(limits.maximum, Math.floor(cap * PAGES)) } : limits);
      heap = this;
    }
  };
}

function watchBuffers(cap) {
  if (typeof GPUDevice === "undefined") return;
  const { createBuffer } = GPUDevice.prototype;
  const { destroy } = GPUBuffer.prototype;
  const sizes = new Map();
  GPUDevice.prototype.createBuffer = function (description) {
    if (cap && gpu.live + description.size > cap * MIB) {
      gpu.refused = `a buffer of ${description.size} bytes does not fit in ${cap} MiB`;
      throw new RangeError(gpu.refused);
    }
    const buffer = createBuffer.call(this, description);
    sizes.set(buffer, description.size);
    gpu.live += description.size;
    gpu.peak = Math.max(gpu.peak, gpu.live);
    return buffer;
  };
  GPUBuffer.prototype.destroy = function () {
    gpu.live -= sizes.get(this) ?? 0;
    sizes.delete(this);
    return destroy.call(this);
  };
}

// The profiler of the WebAssembly build prints its events instead of writing a file.
function nodesPrinted() {
  const names = [];
  const print = console.log.bind(console);
  console.log = (...said) => {
    const text = String(said[0]);
    if (!text.startsWith('{"cat"')) return print(...said);
    const name = /"cat" : "Node".*"name" :"(.*?)_kernel_time"/.exec(text);
    if (name) names.push(name[1]);
  };
  return names;
}

const KINDS = { float32: Float32Array, int64: BigInt64Array, int32: Int32Array, bool: Uint8Array };

async function readInputs(ort, url) {
  const { tensors, file } = await (await fetch(url)).json();
  const data = await (await fetch(new URL(file, url))).arrayBuffer();
  return Object.fromEntries(
    tensors.map(({ name, dtype, shape, offset, bytes }) => {
      const values = new KINDS[dtype](data.slice(offset, offset + bytes));
      return [name, new ort.Tensor(dtype, values, shape)];
    }),
  );
}

// What comes out as NAME_new is fed as NAME; where there is a gradient alone, plain descent.
function update(feeds, outputs, rate) {
  for (const [name, feed] of Object.entries(feeds)) {
    const next = outputs[`${name}_new`];
    const gradient = outputs[`${name}_grad`];
    if (next) feeds[name] = next;
    else if (gradient) for (let i = 0; i < feed.data.length; i++) feed.data[i] -= rate * gradient.data[i];
  }
}

const bytesOf = ({ data }) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);

async function digest(tensor) {
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytesOf(tensor)));
  return Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function held() {
  return { heap: heap.buffer.byteLength, gpu: gpu.peak };
}

async function train(task) {
  const onGpu = task.provider === "webgpu";
  watchHeap(onGpu ? 0 : task.cap);
  watchBuffers(onGpu ? task.cap : 0);
  const nodes = task.profile ? nodesPrinted() : [];
  const ort = await import(task.ort);
  ort.env.wasm.numThreads = 1;
  const session = await ort.InferenceSession.create(task.model, {
    executionProviders: [onGpu ? { name: "webgpu", preferredLayout: "NCHW" } : task.provider],
    enableProfiling: Boolean(task.profile),
    ...task.options,
  });
  const feeds = await readInputs(ort, task.inputs);
  postMessage({ kind: "ready", ...held() });
  const loss = session.outputNames[0];
  for (let step = 0; step < task.steps; step++) {
    const began = performance.now();
    const outputs = await session.run(feeds);
    const ms = performance.now() - began;
    if (step === 0) {
      const outputsOf = session.outputNames.map((name) => [name, outputs[name]]);
      const digests = {};
      for (const [name, tensor] of outputsOf) digests[name] = await digest(tensor);
      const values = task.values ? Object.fromEntries(outputsOf.map(([n, t]) => [n, bytesOf(t)])) : null;
      postMessage({ kind: "compared", digests, values });
    }
    postMessage({ kind: "step", step, loss: outputs[loss].data[0], ms, ...held() });
    update(feeds, outputs, task.rate);
  }
  if (task.profile) session.endProfiling();
  await session.release();
  postMessage({ kind: "done", nodes, ...held() });
}

onmessage = ({ data }) =>
  train(data).catch((error) => {
    // what onnxruntime-web says of a buffer that it did not get hides the reason
    const message = gpu.refused || String(error?.message ?? error);
    postMessage({ kind: "failed", message, ...(heap ? held() : {}) });
  });
