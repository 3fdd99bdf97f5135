//! Trees of web pages, of bounded depth and size, by the rules of the HTML standard.

use std::borrow::Cow;
use std::cell::{Cell, Ref, RefCell};
use std::collections::HashMap;

use html5ever::interface::{ElementFlags, NodeOrText, QuirksMode, TreeSink};
use html5ever::tendril::StrTendril;
use html5ever::tokenizer::{BufferQueue, Tokenizer, TokenizerOpts};
use html5ever::tree_builder::{TreeBuilder, TreeBuilderOpts};
use html5ever::{Attribute, LocalName, QualName, local_name, ns};

use crate::guard;
use crate::html::filter::Filter;

/// Bytes passed to the tokenizer at once.
const PIECE_BYTES: usize = 1 << 18;

/// Maximum number of different element names of one page.
const NAMES: usize = 10_000;

/// Maximum number of elements of one page whose attributes are kept.
const KEPT_ATTRIBUTES: usize = 200_000;

/// Which tags a page may leave open or self-close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Html,
    /// `<script/>` ends itself, and names may have prefixes.
    Xhtml,
}

/// Index of a node.
pub(super) type NodeId = u32;

/// Means no node.
const NONE: NodeId = NodeId::MAX;

/// The document, which contains the root element.
pub(super) const DOCUMENT: NodeId = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeKind {
    Document,
    /// Index of the element's name.
    Element(u16),
    /// Index of the text's byte range.
    Text(u32),
}

#[derive(Debug, Clone, Copy)]
struct Node {
    parent: NodeId,
    first: NodeId,
    last: NodeId,
    previous: NodeId,
    next: NodeId,
    /// Depth in the tree.
    depth: u16,
    kind: NodeKind,
}

/// A page as a tree.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    names: Vec<QualName>,
    numbers: HashMap<QualName, u16>,
    /// Text of all nodes, and the byte range of each text node.
    text: String,
    texts: Vec<(u32, u32)>,
    attributes: HashMap<NodeId, Vec<(LocalName, String)>>,
    /// Contents of templates.
    contents: HashMap<NodeId, NodeId>,
    most_nodes: usize,
    /// True if the page has more nodes than are kept.
    pub(super) is_full: bool,
}

/// The language of an element: HTML, SVG or MathML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Html,
    Svg,
    Math,
}

impl Tree {
    /// Parses a page of at most `nodes` nodes.
    pub(super) fn parse(text: String, dialect: Dialect, nodes: usize) -> Self {
        let sink = Sink::new(nodes);
        let options = TreeBuilderOpts {
            scripting_enabled: false,
            drop_doctype: true,
            ..TreeBuilderOpts::default()
        };
        let filter = Filter::new(TreeBuilder::new(sink, options), dialect);
        let tokenizer = Tokenizer::new(filter, TokenizerOpts::default());
        let mut rest = &*text;
        // The tokenizer copies its input, so it gets one piece at a time.
        while !rest.is_empty() {
            guard::check();
            let (piece, behind) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            let input = BufferQueue::default();
            input.push_back(piece.into());
            while !input.is_empty() {
                let _ = tokenizer.feed(&input);
            }
            rest = behind;
        }
        drop(text);
        tokenizer.end();
        tokenizer.sink.tree.sink.finish()
    }

    /// The element's name and language; `None` for text.
    pub(super) fn element(&self, node: NodeId) -> Option<(&str, Language)> {
        let NodeKind::Element(name) = self.nodes[node as usize].kind else {
            return None;
        };
        let name = &self.names[usize::from(name)];
        let language = match name.ns {
            ns!(svg) => Language::Svg,
            ns!(mathml) => Language::Math,
            _ => Language::Html,
        };
        Some((&name.local, language))
    }

    /// The text of a text node.
    pub(super) fn text(&self, node: NodeId) -> Option<&str> {
        let NodeKind::Text(number) = self.nodes[node as usize].kind else {
            return None;
        };
        let (start, end) = self.texts[number as usize];
        self.text.get(start as usize..end as usize)
    }

    pub(super) fn attribute(&self, node: NodeId, name: &str) -> Option<&str> {
        let attributes = self.attributes.get(&node)?;
        let found = attributes.iter().find(|(known, _)| **known == *name)?;
        Some(&found.1)
    }

    pub(super) fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let known = |node: NodeId| (node != NONE).then_some(node);
        let first = known(self.nodes[node as usize].first);
        std::iter::successors(first, move |child| known(self.nodes[*child as usize].next))
    }

    /// The contents of a template.
    pub(super) fn contents(&self, template: NodeId) -> Option<NodeId> {
        self.contents.get(&template).copied()
    }

    /// Adds a node without a parent; returns the document's index beyond the limit.
    fn add(&mut self, kind: NodeKind) -> NodeId {
        if self.nodes.len() >= self.most_nodes {
            self.is_full = true;
            return DOCUMENT;
        }
        let number = self.nodes.len() as NodeId;
        self.nodes.push(Node {
            parent: NONE,
            first: NONE,
            last: NONE,
            previous: NONE,
            next: NONE,
            depth: 0,
            kind,
        });
        number
    }

    fn name(&mut self, name: QualName) -> u16 {
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let name = if self.names.len() < NAMES {
            name
        } else {
            QualName::new(None, ns!(html), local_name!("span"))
        };
        let number = self.names.len().min(NAMES) as u16;
        if self.names.len() <= NAMES {
            self.names.push(name.clone());
        }
        self.numbers.insert(name, number);
        number
    }

    /// Makes a node the child of another, before `next` or as the last child.
    fn place(&mut self, parent: NodeId, child: NodeId, next: NodeId) {
        if child == DOCUMENT || child == parent {
            return;
        }
        self.take_off(child);
        let previous = match next {
            NONE => self.nodes[parent as usize].last,
            next => self.nodes[next as usize].previous,
        };
        let node = &mut self.nodes[child as usize];
        (node.parent, node.previous, node.next) = (parent, previous, next);
        match previous {
            NONE => self.nodes[parent as usize].first = child,
            previous => self.nodes[previous as usize].next = child,
        }
        match next {
            NONE => self.nodes[parent as usize].last = child,
            next => self.nodes[next as usize].previous = child,
        }
    }

    fn take_off(&mut self, child: NodeId) {
        let Node {
            parent, previous, next, ..
        } = self.nodes[child as usize];
        if parent == NONE {
            return;
        }
        match previous {
            NONE => self.nodes[parent as usize].first = next,
            previous => self.nodes[previous as usize].next = next,
        }
        match next {
            NONE => self.nodes[parent as usize].last = previous,
            next => self.nodes[next as usize].previous = previous,
        }
        let node = &mut self.nodes[child as usize];
        (node.parent, node.previous, node.next) = (NONE, NONE, NONE);
    }

    /// Adds words as a text node, or extends the previous text node.
    fn add_text(&mut self, parent: NodeId, next: NodeId, words: &str) {
        let previous = match next {
            NONE => self.nodes[parent as usize].last,
            next => self.nodes[next as usize].previous,
        };
        let end = self.text.len() + words.len();
        if u32::try_from(end).is_err() {
            self.is_full = true;
            return;
        }
        self.text.push_str(words);
        if previous != NONE
            && let NodeKind::Text(number) = self.nodes[previous as usize].kind
        {
            let range = &mut self.texts[number as usize];
            if range.1 as usize == end - words.len() {
                range.1 = end as u32;
                return;
            }
        }
        let number = self.texts.len() as u32;
        let node = self.add(NodeKind::Text(number));
        if node != DOCUMENT {
            self.texts.push(((end - words.len()) as u32, end as u32));
            self.place(parent, node, next);
        }
    }
}

/// Builds a tree by the rules of HTML.
pub(super) struct Sink {
    pub(super) tree: RefCell<Tree>,
    /// Depth of the open element.
    pub(super) depth: Cell<usize>,
}

impl Sink {
    fn new(nodes: usize) -> Self {
        let mut tree = Tree {
            most_nodes: nodes.max(1),
            ..Tree::default()
        };
        tree.add(NodeKind::Document);
        Self {
            tree: RefCell::new(tree),
            depth: Cell::new(0),
        }
    }

    fn insert(&self, parent: NodeId, next: NodeId, child: NodeOrText<NodeId>) {
        let mut tree = self.tree.borrow_mut();
        match child {
            NodeOrText::AppendText(words) => tree.add_text(parent, next, &words),
            NodeOrText::AppendNode(child) => {
                tree.place(parent, child, next);
                let depth = tree.nodes[parent as usize].depth.saturating_add(1);
                tree.nodes[child as usize].depth = depth;
                self.depth.set(usize::from(depth));
            }
        }
    }

    fn parent(&self, node: NodeId) -> NodeId {
        self.tree.borrow().nodes[node as usize].parent
    }
}

impl TreeSink for Sink {
    type Handle = NodeId;
    type Output = Tree;
    type ElemName<'a> = Ref<'a, QualName>;

    fn finish(self) -> Tree {
        self.tree.into_inner()
    }

    fn parse_error(&self, _: Cow<'static, str>) {}

    fn get_document(&self) -> NodeId {
        DOCUMENT
    }

    fn elem_name<'a>(&'a self, target: &'a NodeId) -> Ref<'a, QualName> {
        Ref::map(self.tree.borrow(), |tree| match tree.nodes[*target as usize].kind {
            NodeKind::Element(name) => &tree.names[usize::from(name)],
            // The tree is full: further content is ignored.
            _ => &tree.names[0],
        })
    }

    fn create_element(&self, name: QualName, attributes: Vec<Attribute>, flags: ElementFlags) -> NodeId {
        let mut tree = self.tree.borrow_mut();
        let name = tree.name(name);
        let node = tree.add(NodeKind::Element(name));
        if node != DOCUMENT && !attributes.is_empty() && tree.attributes.len() < KEPT_ATTRIBUTES {
            let attributes = attributes.into_iter();
            let read = attributes.map(|attribute| (attribute.name.local, attribute.value.to_string()));
            tree.attributes.insert(node, read.collect());
        }
        if flags.template {
            let contents = tree.add(NodeKind::Document);
            tree.contents.insert(node, contents);
        }
        node
    }

    fn create_comment(&self, _: StrTendril) -> NodeId {
        DOCUMENT
    }

    fn create_pi(&self, _: StrTendril, _: StrTendril) -> NodeId {
        DOCUMENT
    }

    fn append(&self, parent: &NodeId, child: NodeOrText<NodeId>) {
        self.insert(*parent, NONE, child);
    }

    fn append_based_on_parent_node(&self, element: &NodeId, previous: &NodeId, child: NodeOrText<NodeId>) {
        match self.parent(*element) {
            NONE => self.insert(*previous, NONE, child),
            parent => self.insert(parent, *element, child),
        }
    }

    fn append_doctype_to_document(&self, _: StrTendril, _: StrTendril, _: StrTendril) {}

    fn pop(&self, node: &NodeId) {
        let depth = self.tree.borrow().nodes[*node as usize].depth;
        self.depth.set(usize::from(depth).saturating_sub(1));
    }

    fn get_template_contents(&self, target: &NodeId) -> NodeId {
        self.tree.borrow().contents.get(target).copied().unwrap_or(DOCUMENT)
    }

    fn same_node(&self, one: &NodeId, other: &NodeId) -> bool {
        one == other
    }

    fn set_quirks_mode(&self, _: QuirksMode) {}

    fn append_before_sibling(&self, sibling: &NodeId, child: NodeOrText<NodeId>) {
        match self.parent(*sibling) {
            NONE => {}
            parent => self.insert(parent, *sibling, child),
        }
    }

    fn add_attrs_if_missing(&self, _: &NodeId, _: Vec<Attribute>) {}

    fn allow_declarative_shadow_roots(&self, _: &NodeId) -> bool {
        // The contents of declarative shadow roots are read like templates.
        false
    }

    fn remove_from_parent(&self, target: &NodeId) {
        self.tree.borrow_mut().take_off(*target);
    }

    fn reparent_children(&self, node: &NodeId, parent: &NodeId) {
        let children: Vec<NodeId> = self.tree.borrow().children(*node).collect();
        let mut tree = self.tree.borrow_mut();
        for child in children {
            tree.place(*parent, child, NONE);
        }
    }
}
