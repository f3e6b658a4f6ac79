// A page opened from disk may start no Worker. Where that is so, one that runs its script in a hidden frame takes its place,
// with as much of a Worker as the search of the site uses. Its script gets importScripts, postMessage and messages.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      const base = new URL(url, location.href);
      const waiting = [];
      this.send = (data) => waiting.push(data);
      document.documentElement.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const load = (path) =>
        new Promise((done) => {
          const script = inside.document.createElement("script");
          script.src = new URL(path, base).href;
          script.onload = script.onerror = done;
          inside.document.body.append(script);
        });
      inside.importScripts = (...paths) => paths.reduce((before, path) => before.then(() => load(path)), Promise.resolve());
      load(base.href).then(() => {
        this.send = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
        waiting.forEach(this.send);
      });
    }
    postMessage(data) {
      this.send(data);
    }
    terminate() {}
  };
}
