// The console's page: logs in with the token of the address, refreshes itself, asks before it does something.
"use strict";

const EVERY_MS = 1000;
const main = document.getElementById("main");
const fresh = document.getElementById("fresh");

// --- login: the token comes in the fragment, which is sent to nobody, and leaves the address at once

const login = document.getElementById("login");
if (login) {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (found) {
    history.replaceState(null, "", location.pathname);
    login.elements.token.value = decodeURIComponent(found[1]);
    login.submit();
  }
}

// --- refresh: what is new is put into what is there, so that focus, selection and tooltips stay

function merge(now, next) {
  if (now.nodeType !== next.nodeType || now.nodeName !== next.nodeName || (now.id || "") !== (next.id || "")) {
    now.replaceWith(next.cloneNode(true));
    return;
  }
  if (now.dataset && next.dataset && "own" in now.dataset && "own" in next.dataset) return; // a script of its own fills it
  if (now.nodeType !== Node.ELEMENT_NODE) {
    if (now.nodeValue !== next.nodeValue) now.nodeValue = next.nodeValue;
    return;
  }
  for (const { name } of [...now.attributes]) {
    if (!next.hasAttribute(name) && !(name === "open" && now.nodeName === "DETAILS")) now.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  mergeChildren(now, next);
}

function mergeChildren(now, next) {
  const byId = new Map([...now.children].filter((each) => each.id).map((each) => [each.id, each]));
  let at = now.firstChild;
  for (const wanted of [...next.childNodes]) {
    const known = wanted.id ? byId.get(wanted.id) : null;
    if (known && known !== at) now.insertBefore(known, at);
    const have = known || (at && !(at.id && next.querySelector(`#${CSS.escape(at.id)}`)) ? at : null);
    if (have) {
      if (have === at) at = at.nextSibling;
      merge(have, wanted);
    } else {
      now.insertBefore(wanted.cloneNode(true), at);
    }
  }
  while (at) {
    const after = at.nextSibling;
    at.remove();
    at = after;
  }
}

function localTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(each.dateTime);
    each.title = moment.toLocaleString();
    each.textContent = moment.toLocaleTimeString([], { hour12: false });
    if (Date.now() - moment > 86400000) each.textContent = moment.toLocaleString([], { hour12: false });
  }
}

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch(`${location.pathname}?part`, { headers: { "X-Perdure-Console": "1" } });
    if (answer.redirected) {
      location.assign("/login");
      return;
    }
    const next = document.createElement("main");
    next.innerHTML = await answer.text();
    if (document.querySelector("a:active, button:active")) return; // what is being pressed must stay until it is let go
    localTimes(next);
    mergeChildren(main, next);
    say(fresh, "", "");
  } catch {
    say(fresh, "the console does not answer: this is the last that it said", "bad");
  }
}

function say(where, text, mood) {
  if (where.textContent !== text) where.textContent = text;
  where.className = mood;
}

localTimes(document);
if ("live" in main.dataset) {
  const again = async () => {
    await refresh();
    setTimeout(again, EVERY_MS);
  };
  setTimeout(again, EVERY_MS);
  document.addEventListener("visibilitychange", refresh);
}

// --- buttons: each asks first

const ask = document.getElementById("ask");
const said = document.getElementById("said");
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-url]");
  if (!button) return;
  const { url, body, ask: question } = button.dataset;
  document.getElementById("ask-text").textContent = question;
  document.getElementById("ask-yes").textContent = button.textContent;
  ask.returnValue = "no";
  ask.onclose = () => {
    if (ask.returnValue === "yes") order(url, body);
  };
  ask.showModal();
});

async function order(url, body) {
  try {
    const headers = { "X-Perdure-Console": "1", "Content-Type": "application/json" };
    const answer = await fetch(url, { method: "POST", headers, body });
    const told = await answer.json();
    say(said, answer.ok ? "It is being done." : told.error.message, answer.ok ? "good shown" : "bad shown");
  } catch {
    say(said, "The console does not answer.", "bad shown");
  }
  setTimeout(() => said.classList.remove("shown"), 6000);
  refresh();
}
